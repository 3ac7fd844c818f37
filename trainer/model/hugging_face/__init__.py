"""Models as folders that `transformers` reads and writes: safetensors, and `config.json`."""

from phasewise.trainer.model.hugging_face.folder import TokenizerFiles, check_writable, read_folder, read_settings, write_folder

__all__ = ["TokenizerFiles", "check_writable", "read_folder", "read_settings", "write_folder"]
