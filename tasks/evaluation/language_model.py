"""The JAX model as lm-eval sees it. Importing this module imports lm-eval (seconds): do so only where it is used."""

from collections import defaultdict
from collections.abc import Sequence
from typing import Any

import jax
import numpy as np
from lm_eval.api.instance import Instance
from lm_eval.api.model import TemplateLM
from tokenizers import Tokenizer

from tasks.data.special_tokens import SpecialTokens
from tasks.evaluation.scoring import Window, cut_windows, next_tokens, rows_per_batch, score_windows
from trainer.base.errors import ConfigError, DataError
from trainer.config import ModelConfig
from trainer.model.params import Params

DEFAULT_MAX_NEW_TOKENS = 32
MIN_ROW_TOKENS = 128


class JaxLanguageModel(TemplateLM):
    """Greedy and deterministic. Contexts longer than `seq_len` lose their beginning; results come in the order of the requests.

    Args:
        special: the tokens that began and ended the documents which the model was trained on.

    Attributes:
        finite: no response so far held a NaN or an infinity. lm-eval itself scores such a model without a word.
    """

    def __init__(self, *, params: Params, config: ModelConfig, tokenizer: Tokenizer, special: SpecialTokens) -> None:
        super().__init__()
        self.params = jax.device_put(params)
        self.config = config
        self.tokenizer = tokenizer
        self.finite = True
        self.begin_of_text, self.end_of_text = special

    @property
    def eot_token_id(self) -> int:
        """The token that ends a document."""
        return self.end_of_text

    @property
    def prefix_token_id(self) -> int:
        """The token that goes before an empty context."""
        return self.begin_of_text

    def tok_encode(self, string: str, add_special_tokens: bool | None = None, **ignored: Any) -> list[int]:
        """Token ids, begin-of-text first unless `add_special_tokens` is False."""
        ids = self.tokenizer.encode(string, add_special_tokens=False).ids
        opened = add_special_tokens is False or ids[:1] == [self.begin_of_text]
        return ids if opened else [self.begin_of_text, *ids]

    def loglikelihood(self, requests: list[Instance], disable_tqdm: bool = True) -> list[tuple[float, bool]]:
        """As lm-eval's, without its progress bar."""
        return super().loglikelihood(requests, disable_tqdm=disable_tqdm)

    def _loglikelihood_tokens(
        self, requests: Sequence[tuple[tuple[str, str], list[int], list[int]]], **ignored: Any
    ) -> list[tuple[float, bool]]:
        """(sum of natural log-likelihoods, is greedy) of each continuation."""
        windows = [self._window(context or [self.begin_of_text], continuation) for _, context, continuation in requests]
        results: list[tuple[float, bool]] = []
        scores = score_windows(self.params, self.config, windows)
        for (_, _, continuation), scored in zip(requests, scores, strict=True):
            start = len(scored.greedy) - len(continuation)
            results.append((self._sum(scored.log_likelihoods[start:]), bool(scored.greedy[start:].all())))
        return results

    def loglikelihood_rolling(self, requests: list[Instance], disable_tqdm: bool = True) -> list[float]:
        """Log-likelihood of each whole text, cut into disjoint windows."""
        texts = [self.tok_encode(request.arguments[0], add_special_tokens=False) for request in requests]
        windows = [cut_windows(tokens, self.config.seq_len, self.begin_of_text) for tokens in texts]
        scores = iter(score_windows(self.params, self.config, [window for of_text in windows for window in of_text]))
        return [float(sum(self._sum(next(scores).log_likelihoods) for _ in of_text)) for of_text in windows]

    def generate_until(self, requests: list[Instance], disable_tqdm: bool = True) -> list[str]:
        """The likeliest text after each context, up to its first stop string, the end-of-text token, or `max_gen_toks` tokens."""
        groups: defaultdict[tuple[tuple[str, ...], int], list[int]] = defaultdict(list)
        for index, request in enumerate(requests):
            groups[_generation_limits(request.arguments[1])].append(index)
        answers = [""] * len(requests)
        for (stops, max_new_tokens), indices in groups.items():
            contexts = [self.tok_encode(requests[index].arguments[0]) for index in indices]
            for index, answer in zip(indices, self._generate(contexts, stops, max_new_tokens), strict=True):
                answers[index] = answer
        return answers

    def _generate(self, contexts: list[list[int]], stops: tuple[str, ...], max_new_tokens: int) -> list[str]:
        """All contexts grow by one token a round; those that are finished drop out."""
        generated: list[list[int]] = [[] for _ in contexts]
        answers = [""] * len(contexts)
        active = list(range(len(contexts)))
        for _ in range(max_new_tokens):
            tokens = self._next_tokens([contexts[i] + generated[i] for i in active])
            going: list[int] = []
            for i, token in zip(active, tokens, strict=True):
                generated[i].append(token)
                text = self.tokenizer.decode(generated[i])
                answers[i] = before_first(text, stops)
                if token != self.end_of_text and answers[i] == text:
                    going.append(i)
            active = going
            if not active:
                break
        return answers

    def _next_tokens(self, sequences: list[list[int]]) -> list[int]:
        """The likeliest next token of each sequence; sequences of like length share batches."""
        by_length: defaultdict[int, list[int]] = defaultdict(list)
        for index, sequence in enumerate(sequences):
            by_length[_compiled_length(len(sequence), self.config.seq_len)].append(index)
        tokens = [0] * len(sequences)
        for length, indices in by_length.items():
            size = rows_per_batch(length)
            for batch in (indices[start : start + size] for start in range(0, len(indices), size)):
                for index, token in zip(batch, self._next_of_batch([sequences[i][-length:] for i in batch], length), strict=True):
                    tokens[index] = token
        return tokens

    def _next_of_batch(self, sequences: list[list[int]], length: int) -> list[int]:
        rows = np.full((rows_per_batch(length), length), self.begin_of_text, np.int32)
        last = np.zeros(len(rows), np.int32)
        for row, sequence in enumerate(sequences):
            rows[row, : len(sequence)] = sequence
            last[row] = len(sequence) - 1
        tokens, finite = next_tokens(self.params, rows, last, config=self.config)
        self.finite &= bool(np.asarray(finite)[: len(sequences)].all())
        return np.asarray(tokens)[: len(sequences)].tolist()

    def _window(self, context: list[int], continuation: list[int]) -> Window:
        if len(continuation) > self.config.seq_len:
            raise DataError(
                f"a continuation must fit in the model's seq_len of {self.config.seq_len} tokens, found {len(continuation)} tokens. "
                "Use shorter choices, or score the text with loglikelihood_rolling."
            )
        sequence = np.array(context + continuation, np.int32)[-self.config.seq_len - 1 :]
        return Window(sequence[:-1], sequence[1:])

    def _sum(self, log_likelihoods: np.ndarray) -> float:
        total = float(log_likelihoods.sum(dtype=np.float64))
        self.finite &= bool(np.isfinite(total))
        return total


def _generation_limits(settings: dict[str, Any]) -> tuple[tuple[str, ...], int]:
    """Stop strings and the most tokens to generate.

    Raises:
        ConfigError: the benchmark asks for sampling.
    """
    if settings.get("do_sample") or settings.get("temperature"):
        raise ConfigError(f"generation here is greedy: do_sample must be false and temperature 0 or absent, found {settings}.")
    until = settings.get("until") or ()
    stops = (until,) if isinstance(until, str) else tuple(until)
    return tuple(stop for stop in stops if stop), int(settings.get("max_gen_toks") or DEFAULT_MAX_NEW_TOKENS)


def before_first(text: str, stops: tuple[str, ...]) -> str:
    """`text` up to the first occurrence of any stop string."""
    return text[: min((found for stop in stops if (found := text.find(stop)) >= 0), default=len(text))]


def _compiled_length(length: int, seq_len: int) -> int:
    """Row length for a sequence of `length` tokens: a power of two, so that few shapes are compiled."""
    return min(seq_len, max(MIN_ROW_TOKENS, 1 << (length - 1).bit_length()))
