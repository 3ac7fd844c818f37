"""A model of ours as lm-eval sees it. Importing this module imports lm-eval (seconds): do so only where it is used.

It gives the answers that lm-eval's `HFLM` gives for the exported folder.
"""

from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from typing import Any

import jax
import numpy as np
from lm_eval.api.instance import Instance
from lm_eval.api.model import CacheHook, TemplateLM
from lm_eval.utils import get_rolling_token_windows, make_disjoint_window
from tokenizers import Tokenizer

from phasewise.tasks.data.tokenizer import SpecialTokens
from phasewise.tasks.evaluation.generation import Grown, Prompt, generate
from phasewise.tasks.evaluation.requests import Generation, before_first, check_finite, name_request, read_generation
from phasewise.tasks.evaluation.rows import Window
from phasewise.tasks.evaluation.scoring import score_windows
from phasewise.trainer.base.errors import ConfigError, DataError
from phasewise.trainer.config import ModelConfig
from phasewise.trainer.model.params import Params
from phasewise.trainer.sharding import state_shardings


class JaxLanguageModel(TemplateLM):
    """Results are finite, complete, and in the order of the requests; batches, order and what shares a row change none of them.

    Contexts that are too long lose their beginning, as in `HFLM`, and are counted. All devices work on one list of requests: lm-eval sees
    one process.

    Attributes:
        num_contexts: those that a continuation or a text was asked for behind, since the model is here.
        num_cut_contexts: those of them that lost their beginning.
        trained_length: tokens of the rows that the model was trained on.
        ends: the tokens of which the first one ends what is written, sorted.

    Args:
        special: the tokens that began and ended the documents which the model was trained on.
        ends: those that end what is written, beside the one that ends a document: of a model of conversations, what ends an answer.
        begins_texts: whether a text begins with `special.begin`. Some models of others know no such token.
        seed: of what is sampled. A request's sample depends on the seed, its text, and how often the same was asked for before.
        mesh: the devices to cut weights and batches over; None is one device.
    """

    def __init__(
        self, *, params: Params, config: ModelConfig, tokenizer: Tokenizer, special: SpecialTokens,
        ends: Iterable[int] = (), begins_texts: bool = True, seed: int = 0, mesh: jax.sharding.Mesh | None = None,
    ) -> None:  # fmt: skip
        super().__init__()
        self.params = jax.device_put(params, None if mesh is None else state_shardings(params, config, mesh))
        self.config = config
        self.trained_length = config.seq_len
        self.tokenizer = tokenizer
        self.begin_of_text, self.end_of_text = special
        self.ends = tuple(sorted({self.end_of_text, *ends}))
        self.begins_texts = begins_texts
        self.seed = seed
        self.mesh = mesh
        self.num_contexts = 0
        self.num_cut_contexts = 0

    @property
    def eot_token_id(self) -> int:
        """The token that ends a document."""
        return self.end_of_text

    @property
    def prefix_token_id(self) -> int:
        """The token that goes before an empty context."""
        return self.begin_of_text

    @property
    def max_length(self) -> int:
        """Tokens that the model sees."""
        return self.config.seq_len

    def read_up_to(self, length: int) -> None:
        """Have the model read texts of so many tokens, which may be more than it was trained on. No weight depends on it.

        Raises:
            ConfigError: it reads as much already.
        """
        if length <= self.config.seq_len:
            raise ConfigError(
                f"--context must be more than the {self.config.seq_len:,} tokens that the model reads, found {length:,}: leave it out."
            )
        self.config = self.config.but(seq_len=length)

    @property
    def tokenizer_name(self) -> str:
        """lm-eval names what it caches of requests by it; the weights are not in it."""
        return f"phasewise-{self.tokenizer.get_vocab_size()}"

    def set_cache_hook(self, cache_hook: CacheHook) -> None:
        """lm-eval's `use_cache` is refused: its keys do not name the model, and a second model would be given the first one's answers.

        Raises:
            ConfigError: see above.
        """
        if cache_hook.dbdict is not None:
            raise ConfigError(
                "use_cache of lm-eval must be off, found it on: its keys do not name the model. Evaluations are kept by their own key."
            )
        super().set_cache_hook(cache_hook)

    def tok_encode(self, string: str, add_special_tokens: bool | None = None, **ignored: Any) -> list[int]:
        """Token ids, begin-of-text first unless `add_special_tokens` is False. A text that spells that token has it once."""
        begin = self.tokenizer.id_to_token(self.begin_of_text)
        spelled = self.begins_texts and begin is not None and string.startswith(begin)
        ids = self.tokenizer.encode(string.removeprefix(begin) if spelled and begin else string, add_special_tokens=False).ids
        adds = self.begins_texts if add_special_tokens is None else add_special_tokens
        return [self.begin_of_text, *ids] if spelled or adds else ids

    def loglikelihood(self, requests: list[Instance], disable_tqdm: bool = True) -> list[tuple[float, bool]]:
        """(log-likelihood of the continuation, whether it is what greedy generation says) of each request, without a progress bar.

        Raises:
            DataError: a continuation has no token, or more than the model sees.
            EvaluationError: an answer is not finite.
        """
        for number, request in enumerate(requests):
            if not request.arguments[1]:
                raise DataError(
                    f"a continuation must have a token, found none in {name_request(number, request.arguments)}: correct the benchmark."
                )
        return super().loglikelihood(requests, disable_tqdm=disable_tqdm)

    def windows_of(self, pairs: Sequence[tuple[str, str]]) -> list[Window]:
        """What is read and predicted for (context, continuation) pairs, none of them empty."""
        return [self._window(number, pair, *self._encode_pair(*pair)) for number, pair in enumerate(pairs)]

    def _loglikelihood_tokens(
        self, requests: Sequence[tuple[tuple[str, str], list[int], list[int]]], **ignored: Any
    ) -> list[tuple[float, bool]]:
        """What lm-eval calls with token ids."""
        windows = [self._window(number, *request) for number, request in enumerate(requests)]
        scores = score_windows(self.params, self.config, windows, self.mesh)
        return [
            (check_finite(float(found.log_likelihoods.sum(dtype=np.float64)), number, strings), bool(found.greedy.all()))
            for number, ((strings, _, _), found) in enumerate(zip(requests, scores, strict=True))
        ]

    def loglikelihood_rolling(self, requests: list[Instance], disable_tqdm: bool = True) -> list[float]:
        """Log-likelihood of each whole text, in lm-eval's windows: each token once; the last window begins as early as the model sees.

        Begin-of-text is given, not predicted, as from an `HFLM` with `add_bos_token=False`.

        Raises:
            EvaluationError: an answer is not finite.
        """
        windows = [self._rolling_windows(request.arguments[0]) for request in requests]
        scores = iter(score_windows(self.params, self.config, [window for of_text in windows for window in of_text], self.mesh))
        sums = [sum(float(next(scores).log_likelihoods.sum(dtype=np.float64)) for _ in of_text) for of_text in windows]
        return [check_finite(value, number, requests[number].arguments) for number, value in enumerate(sums)]

    def generate_until(self, requests: list[Instance], disable_tqdm: bool = True) -> list[str]:
        """A text behind each context: up to its first stop string, a token that ends what is written, or `max_gen_toks` tokens.

        Raises:
            ConfigError: what a benchmark asks for is not possible here.
            EvaluationError: the logits of a text were not finite.
        """
        groups: defaultdict[Generation, list[int]] = defaultdict(list)
        for number, request in enumerate(requests):
            groups[read_generation(request.arguments[1])].append(number)
        answers: dict[int, str] = {}
        for generation, numbers in groups.items():
            contexts = [requests[number].arguments[0] for number in numbers]
            for number, context, grown in zip(numbers, contexts, self._generate(contexts, generation), strict=True):
                check_finite(0.0 if grown.finite else np.nan, number, [context])
                answers[number] = before_first(self.tokenizer.decode(grown.tokens), generation.stops)
        return [answers[number] for number in range(len(requests))]

    def _generate(self, contexts: Sequence[str], generation: Generation) -> list[Grown]:
        room = self.config.seq_len - generation.max_new_tokens
        if room < 1:
            raise ConfigError(
                f"max_gen_toks must leave room for a context in the model's seq_len of {self.config.seq_len} tokens, found "
                f"{generation.max_new_tokens} in a benchmark's generation_kwargs: lower it there."
            )
        asked: Counter[str] = Counter()
        prompts: list[Prompt] = []
        for context in contexts:
            tokens = self.tok_encode(context) or [self.begin_of_text]
            self._count_context(is_cut=len(tokens) > room)
            prompts.append(Prompt(tokens[-room:], asked[context]))
            asked[context] += 1

        def has_stopped(tokens: list[int]) -> bool:
            text = self.tokenizer.decode(tokens)
            return before_first(text, generation.stops) != text

        return generate(
            self.params, self.config, prompts, max_new_tokens=generation.max_new_tokens, ends=self.ends,
            ended=has_stopped, sampling=generation.sampling, seed=self.seed, mesh=self.mesh,
        )  # fmt: skip

    def _rolling_windows(self, text: str) -> list[Window]:
        tokens = self.tok_encode(text, add_special_tokens=False)
        pairs = get_rolling_token_windows(tokens, self.begin_of_text, max_seq_len=self.config.seq_len, context_len=1)
        return [_as_window(context, predicted) for context, predicted in map(make_disjoint_window, pairs)]

    def _window(self, number: int, strings: Sequence[str], context: list[int], continuation: list[int]) -> Window:
        """The continuation behind as much of the end of its context as the model sees."""
        if not 1 <= len(continuation) <= self.config.seq_len:
            raise DataError(
                f"a continuation must have a token and fit in the model's seq_len of {self.config.seq_len} tokens, found "
                f"{len(continuation)} tokens in {name_request(number, strings)}. Use other choices, or score the text with "
                "loglikelihood_rolling."
            )
        whole = (context or [self.begin_of_text]) + continuation
        kept = whole[-self.config.seq_len - 1 :]
        self._count_context(is_cut=len(kept) < len(whole))
        return _as_window(kept[: len(kept) - len(continuation)], continuation)

    def _count_context(self, *, is_cut: bool) -> None:
        self.num_contexts += 1
        self.num_cut_contexts += is_cut


def _as_window(context: list[int], predicted: list[int]) -> Window:
    return Window(np.array(context + predicted[:-1], np.int32), np.array(predicted, np.int32))
