"""The page shows a prediction while a phase trains, and what it took beside it afterwards."""

from flows.site.training import Tile, predicted_tile
from tasks.prediction.account import Account
from tasks.prediction.predict import Prediction
from tasks.training.spent import Spent

PREDICTION = Prediction(run_digest="a", steps=10, seconds=40.0, source="a calibration")
UNKNOWN = Prediction(run_digest="a", steps=10, source="nothing like it was measured")
TOOK = Spent(wall_seconds=50.0, lives=1, seconds={})


def test_before_the_end_the_prediction_and_then_both():
    assert predicted_tile(Account(prediction=PREDICTION, took=None, ratio=None)) == Tile("predicted time", "about 40 s", "a calibration")
    ended = predicted_tile(Account(prediction=PREDICTION, took=TOOK, ratio=1.25))
    assert ended == Tile("time", "about 50 s", "predicted about 40 s, by a calibration")


def test_where_nothing_is_predicted_it_says_so():
    waits = predicted_tile(Account(prediction=UNKNOWN, took=None, ratio=None))
    assert waits == Tile("predicted time", "–", "nothing like it was measured")
    assert predicted_tile(Account(prediction=UNKNOWN, took=TOOK, ratio=None)) == Tile("time", "about 50 s", "not predicted")
