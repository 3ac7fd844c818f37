"""The conversations that a checkpoint was trained on, from its caches, wherever these are now."""

import shutil
from pathlib import Path

import numpy as np
import pytest

from phasewise.tasks.evaluation.model_loading import find_chats
from phasewise.trainer.data.manifest import read_manifest, write_manifest
from tests.tasks.data.conversation_worlds import layout
from tests.trainer.token_caches import BEGIN, END, write_conversations, write_token_cache


def test_a_checkpoint_s_chat_templates_are_found_in_the_home_that_it_is_in_now(tmp_path: Path, caplog: pytest.LogCaptureFixture):
    document = np.array([BEGIN, 5, 6, END], np.uint16)
    talk = write_conversations(tmp_path / "home" / "tokens" / "talk" / "train-1", [[(document, [(1, 3)])]])
    how = layout("messages", "{% generation %}{{ messages[0].content + '<|end|>' }}{% endgeneration %}")
    write_manifest(talk, read_manifest(talk).but(source={"conversation": how.model_dump(mode="json")}))
    web = write_token_cache(tmp_path / "home" / "tokens" / "web" / "train-1", [[document]])
    run = {"caches": {"talk": str(talk), "web": str(web)}}
    checkpoint = tmp_path / "home" / "runs" / "recipe" / "phase" / "checkpoints" / "4"
    assert [chat.turn_end() for chat in find_chats(checkpoint, run)] == ["<|end|>"]
    assert caplog.text == ""
    shutil.move(tmp_path / "home", tmp_path / "moved")
    moved = tmp_path / "moved" / checkpoint.relative_to(tmp_path / "home")
    assert [chat.turn_end() for chat in find_chats(moved, run)] == ["<|end|>"]
    assert [chat.turn_end() for chat in find_chats(tmp_path / "4", run, tmp_path / "moved")] == ["<|end|>"]
    assert caplog.text == ""
    assert find_chats(tmp_path / "4", run) == ()
    assert "the caches of talk, web are gone" in caplog.text
