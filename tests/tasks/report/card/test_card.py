"""A card is what its home says, holds from another folder, and is valid by the standards' own validators."""

import json
import shutil
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from phasewise.flows.cli.main import main
from phasewise.tasks.report.card import ENVELOPE_NAME, STATEMENT_NAME, Against, CardOptions, verify_card, write_card
from phasewise.tasks.report.card_documents import BOM_NAME, CROISSANT_NAME, build_model_card
from phasewise.trainer.base.errors import ConfigError, VerdictError
from tests.tasks.report.card.conftest import SUBJECT, Carded, claims_of


def test_a_card_holds_from_another_folder_and_home(carded: Carded):
    found = carded.verify()
    assert found.passes, [one.line for one in (*found.disagreements, *found.unchecked)]
    assert found.read_bytes > 100_000


def test_equal_homes_give_equal_cards_without_a_path_of_this_machine(carded: Carded, written: Carded, tmp_path: Path):
    write_card(carded.home, SUBJECT, tmp_path / "again", CardOptions())
    names = sorted(path.name for path in written.card.iterdir())
    assert names == sorted(path.name for path in (tmp_path / "again").iterdir())
    for name in names:
        content = (written.card / name).read_text()
        assert content == (tmp_path / "again" / name).read_text()
        assert str(written.home) not in content
        assert "/tmp" not in content


def test_a_home_that_contradicts_itself_gets_no_card(carded: Carded, tmp_path: Path):
    carded.edit("runs/tiny-proxy/ocelot/result.json", lambda result: result.update(params_digest="0" * 64))
    with pytest.raises(VerdictError, match=r"evaluation\.params_digest: the home says"):
        write_card(carded.home, SUBJECT, tmp_path / "none", CardOptions())
    assert not (tmp_path / "none").exists()


def test_without_a_home_nothing_counts_as_checked(written: Carded):
    found = verify_card(written.card, Against())
    assert not found.disagreements
    assert not found.passes
    assert [one.field for one in found.unchecked] == ["all claims"]


def test_what_is_not_read_is_named(carded: Carded):
    found = carded.verify(max_read_bytes=0)
    assert not found.disagreements
    assert not found.passes
    fields = {one.field for one in found.unchecked}
    assert "data.flan.manifest.shards.shard-00000.digest" in fields
    assert "training.params_digest" in fields


def test_source_files_elsewhere_are_read_where_they_are_said_to_be(carded: Carded, tmp_path: Path):
    moved = shutil.move(carded.home / "sources/flan", tmp_path / "flan")
    assert [one.field for one in carded.verify().unchecked] == ["data.flan.manifest.sources.text.jsonl"]
    assert carded.verify(source_folders={"flan": Path(moved)}).passes


@pytest.mark.parametrize("name", [BOM_NAME, CROISSANT_NAME, "README.md"])
def test_another_document_of_the_card_cannot_say_something_else(name: str, carded: Carded):
    path = carded.card / name
    path.write_text(path.read_text().replace("medu_science_qa", "medu_science_qb", 1))
    found = carded.verify()
    assert any(one.field == f"documents.{name}" for one in found.disagreements)
    assert any(one.field.startswith((f"{name}:", f"{name}: ")) for one in found.disagreements)


def test_a_stray_file_and_a_missing_one_are_named(carded: Carded):
    (carded.card / "more.json").write_text("{}")
    (carded.card / BOM_NAME).unlink()
    fields = [one.field for one in carded.verify().disagreements]
    assert {"more.json", BOM_NAME} <= set(fields)


@pytest.mark.parametrize("content", ["", "[]", "{}", '{"_type": "x", "subject": [], "predicate": 3}', '{"predicate": {"scale": {}}}'])
def test_what_is_no_statement_is_refused_without_a_traceback(content: str, carded: Carded):
    (carded.card / STATEMENT_NAME).write_text(content)
    assert carded.verify().disagreements


@pytest.mark.parametrize("name", ["../../etc", "a/b", ".."])
def test_a_card_does_not_lead_out_of_the_home(name: str, carded: Carded):
    def edit(claims: dict[str, Any]) -> None:
        claims["scale"] = name

    carded.forge(edit)
    with pytest.raises(ConfigError, match="must be names of folders"):
        carded.verify()


def test_the_commands(trained: tuple[Path, Path], tmp_path: Path):
    recipe, home = trained
    asked = ["card", f"{recipe}/ocelot", str(tmp_path / "card"), "--home", str(home), "--json"]
    result = CliRunner().invoke(main, asked)
    assert result.exit_code == 0, result.stderr
    said = json.loads(result.stdout)
    assert (said["phase"], said["step"], said["signed"], said["passes"]) == ("ocelot", 52, False, True)
    result = CliRunner().invoke(main, ["verify", str(tmp_path / "card"), "--home", str(home)])
    assert (result.exit_code, "all was checked, and holds" in result.stdout) == (0, True), result.output
    result = CliRunner().invoke(main, ["verify", str(tmp_path / "card")])
    assert (result.exit_code, "not checked: all claims" in result.stdout) == (1, True)
    assert CliRunner().invoke(main, asked).exit_code == 2  # the folder is not empty
    assert CliRunner().invoke(main, ["verify", str(tmp_path)]).exit_code == 2


@pytest.mark.skipif(find_spec("cyclonedx") is None, reason="needs cyclonedx-python-lib[json-validation]")
def test_the_bill_of_materials_is_valid_by_its_standard(written: Carded):
    validator = import_module("cyclonedx.validation.json").JsonStrictValidator(import_module("cyclonedx.schema").SchemaVersion.V1_6)
    content = (written.card / BOM_NAME).read_text()
    assert validator.validate_str(content) is None
    assert validator.validate_str(content.replace('"machine-learning-model"', '"machine"')) is not None


@pytest.mark.skipif(find_spec("mlcroissant") is None, reason="needs mlcroissant")
@pytest.mark.filterwarnings("ignore")
def test_the_description_of_the_data_is_valid_by_its_standard(written: Carded):
    assert not import_module("mlcroissant").Dataset(jsonld=str(written.card / CROISSANT_NAME)).metadata.issues.errors


@pytest.mark.skipif(find_spec("in_toto_attestation") is None, reason="needs in-toto-attestation")
def test_the_statement_is_valid_by_its_standard(written: Carded):
    library = import_module("in_toto_attestation.v1.statement")
    parsed = import_module("google.protobuf.json_format").Parse(
        (written.card / STATEMENT_NAME).read_text(), import_module("in_toto_attestation.v1.statement_pb2").Statement()
    )
    library.Statement.copy_from_pb(parsed).validate()


def test_an_unsigned_card_is_refused_where_a_key_is_expected(written: Carded, tmp_path: Path):
    assert not (written.card / ENVELOPE_NAME).exists()
    found = verify_card(written.card, Against(public_key=tmp_path / "key.pem"))
    assert "the card is not signed" in found.disagreements[0].words


def test_the_page_names_padding_templates_and_length_bias(written: Carded):
    claims = claims_of(written.card)
    cache = claims["data"]["flan"]["manifest"]
    cache["template"] = "made up"
    cache["shards"][0]["spans"] = 3
    cache["source"]["length_bias"] = {"floor": 0.1, "ceiling": 1.0, "full_tokens": 9}
    claims["training"]["counted_tokens"] = 7
    page = build_model_card(claims)
    assert "flan has conversations, put into text by the chat template `made up`, which marks the answers." in page
    assert "Of flan documents were taken by their length: 100 % from 9 tokens on" in page
    assert "tokens, padding included, of which 7 were predicted." in page
    assert "put into text" not in build_model_card(claims_of(written.card))
