import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner
from safetensors.numpy import load_file, save_file

from phasewise.flows.cli.main import main
from phasewise.tasks.report import card as module
from phasewise.tasks.report.card import BOM_NAME, CROISSANT_NAME, ENVELOPE_NAME, STATEMENT_NAME, Against, CardOptions, write_card
from phasewise.tasks.report.export import build_model_card
from phasewise.trainer.base.errors import ConfigError, VerdictError
from tests.tasks.report.card.conftest import SUBJECT, Carded, claims_of


def test_a_card_holds_from_another_folder_and_a_home_that_contradicts_itself_gets_none(carded: Carded, written: Carded, tmp_path: Path):
    found = carded.verify()
    assert found.passes, [one.line for one in (*found.disagreements, *found.unchecked)]
    assert found.read_bytes > 100_000
    write_card(carded.home, SUBJECT, tmp_path / "again", CardOptions())
    cards = [{path.name: path.read_text() for path in folder.iterdir()} for folder in (written.card, tmp_path / "again")]
    assert cards[0] == cards[1]
    assert not any(str(written.home) in content or "/tmp" in content for content in cards[0].values()), "no path of this machine"
    carded.edit("runs/tiny-proxy/ocelot/result.json", lambda result: result.update(params_digest="0" * 64))
    with pytest.raises(VerdictError, match=r"evaluation\.params_digest: the home says"):
        write_card(carded.home, SUBJECT, tmp_path / "none", CardOptions())
    assert not (tmp_path / "none").exists()


def test_what_is_not_read_is_named_and_does_not_pass(carded: Carded, written: Carded, tmp_path: Path):
    nothing_read = module.verify_card(written.card, Against())
    bounded = carded.verify(max_read_bytes=0)
    assert [one.field for one in nothing_read.unchecked] == ["all claims"]
    assert {"data.flan.manifest.shards.shard-00000.digest", "training.params_digest"} <= {one.field for one in bounded.unchecked}
    assert not (written.card / ENVELOPE_NAME).exists()
    unsigned = module.verify_card(written.card, Against(public_key=tmp_path / "key.pem"))
    assert "the card is not signed" in unsigned.disagreements[0].words
    for found in (nothing_read, bounded):
        assert (found.disagreements, found.passes) == ([], False)
    moved = shutil.move(carded.home / "sources/flan", tmp_path / "flan")
    assert [one.field for one in carded.verify().unchecked] == ["data.flan.manifest.sources.text.jsonl"]
    assert carded.verify(source_folders={"flan": Path(moved)}).passes


def test_another_document_of_the_card_cannot_say_something_else(carded: Carded):
    for name in (BOM_NAME, CROISSANT_NAME, "README.md"):
        path = carded.card / name
        path.write_text(path.read_text().replace("medu_science_qa", "medu_science_qb", 1))
    fields = [one.field for one in carded.verify().disagreements]
    for name in (BOM_NAME, CROISSANT_NAME, "README.md"):
        assert f"documents.{name}" in fields
        assert any(field.startswith(f"{name}:") for field in fields)
    (carded.card / "more.json").write_text("{}")
    (carded.card / BOM_NAME).unlink()
    assert {"more.json", BOM_NAME} <= {one.field for one in carded.verify().disagreements}


def test_what_is_no_statement_is_refused_without_a_traceback_and_no_name_leads_out_of_the_home(carded: Carded):
    for name in ("../../etc", "a/b", ".."):
        carded.forge(lambda claims, name=name: claims.update(scale=name))
        with pytest.raises(ConfigError, match="must be names of folders"):
            carded.verify()
    for content in ("", "[]", "{}", '{"_type": "x", "subject": [], "predicate": 3}', '{"predicate": {"scale": {}}}'):
        (carded.card / STATEMENT_NAME).write_text(content)
        assert carded.verify().disagreements


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
    assert CliRunner().invoke(main, asked).exit_code == 2, "the folder is not empty"
    assert CliRunner().invoke(main, ["verify", str(tmp_path)]).exit_code == 2


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


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("document", [BOM_NAME, CROISSANT_NAME, STATEMENT_NAME])
def test_each_document_is_valid_by_its_standard(written: Carded, document: str):
    content = (written.card / document).read_text()
    if document == BOM_NAME:
        validation, schema = pytest.importorskip("cyclonedx.validation.json"), pytest.importorskip("cyclonedx.schema")
        validator = validation.JsonStrictValidator(schema.SchemaVersion.V1_6)
        assert validator.validate_str(content) is None
        assert validator.validate_str(content.replace('"machine-learning-model"', '"machine"')) is not None
    elif document == CROISSANT_NAME:
        library = pytest.importorskip("mlcroissant")
        assert not library.Dataset(jsonld=str(written.card / document)).metadata.issues.errors
    else:
        library, format_ = pytest.importorskip("in_toto_attestation.v1.statement"), pytest.importorskip("google.protobuf.json_format")
        empty = pytest.importorskip("in_toto_attestation.v1.statement_pb2").Statement()
        library.Statement.copy_from_pb(format_.Parse(content, empty)).validate()


@pytest.fixture(scope="module", params=["last", "average:2"])
def folder(request: pytest.FixtureRequest, trained: tuple[Path, Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    recipe, home = trained
    out = tmp_path_factory.mktemp("exported") / "out"
    asked = ["export", f"{recipe}/ocelot", str(out), "--home", str(home), "--weights", request.param, "--dtype", "bfloat16"]
    result = CliRunner().invoke(main, asked)
    assert result.exit_code == 0, result.output
    return out


def test_an_exported_folder_is_named_by_its_card_and_other_weights_get_none(folder: Path, written: Carded, tmp_path: Path):
    readme = (folder / "README.md").read_text()
    assert "nothing was known of" not in readme
    headings = ("## Lineage", "## Mixture", "## Evaluation", "## Verdicts", "## Data", "| ocelot | 40 to 52 | kestrel at step 40 |")
    assert [heading for heading in headings if heading not in readme] == []
    write_card(written.home, SUBJECT, tmp_path / "card", CardOptions(export=folder))
    carded = Carded(written.home, tmp_path / "card")
    assert carded.verify(export=folder).passes
    assert [one.field for one in carded.verify().unchecked] == ["export"]
    statement: dict[str, Any] = json.loads((carded.card / STATEMENT_NAME).read_text())
    assert "export/model.safetensors" in {subject["name"] for subject in statement["subject"]}
    assert not [gate for gate in statement["predicate"]["claims"]["gates"].values() if "ruling" in gate], "no person decided"
    page = Path(shutil.copytree(folder, tmp_path / "copied")) / "README.md"
    page.write_text(page.read_text() + "\nThe best model.\n")
    assert "export.files.README.md.sha256" in {one.field for one in carded.verify(export=page.parent).disagreements}
    path = Path(shutil.copytree(folder, tmp_path / "copy")) / "model.safetensors"
    tensors = load_file(path)
    name = sorted(tensors)[0]
    tensors[name].reshape(-1)[0] += np.ones((), tensors[name].dtype)
    save_file(tensors, path, {"format": "pt"})
    with pytest.raises(VerdictError, match=r"export\.weights: its tensors are not"):
        write_card(written.home, SUBJECT, tmp_path / "none", CardOptions(export=path.parent))
