"""The kernels of a language model's step, from its configuration alone: shapes, floating-point operations, bytes that must move.

The configuration is a `config.json` as Hugging Face writes it, of a decoder of the llama kind: attention with grouped key and value heads,
a gated feed-forward network, norms in front of both.  Weights and activations have one type of element, sums are FP32.
"""

import json
from dataclasses import dataclass
from pathlib import Path

from cudalab.dtypes import itemsize
from cudalab.errors import LabError

PHASES = ("prefill", "decode")
# our name -> the keys that configurations have for it
KEYS = dict(layers=("num_hidden_layers", "n_layer", "num_layers"), d=("hidden_size", "n_embd", "d_model"),
            ff=("intermediate_size", "n_inner", "ffn_dim"), heads=("num_attention_heads", "n_head"), vocab=("vocab_size",))
EXPERTS = ("num_local_experts", "num_experts", "n_routed_experts")
LARGEST = 10**9  # of any size; what is larger is a mistake


@dataclass(frozen=True)
class Model:
    """Sizes: layers, width d, width ff of the feed-forward network, heads, kv heads, size of a head, vocabulary."""

    name: str
    layers: int
    d: int
    ff: int
    heads: int
    kv: int
    head: int
    vocab: int

    @property
    def layer_weights(self) -> int:
        """Elements of one layer's matrices."""
        return self.d * self.head * (2 * self.heads + 2 * self.kv) + 3 * self.d * self.ff


@dataclass(frozen=True)
class Kernel:
    """One kernel of a step.  count: how often a step runs it.  read, written: compulsory bytes of one run.  matrix: its arithmetic is a
    product of matrices, for tensor cores; of the rest the lanes do it."""

    name: str
    phase: str
    shape: str
    count: int
    flops: int
    read: int
    written: int
    matrix: bool


def load(path: Path) -> Model:
    """The model of a config.json.  Raises LabError, one line, for a file that is none or a model of another kind."""
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise LabError(f"cannot read {path}: {error.strerror}; name a model's config.json") from None
    except (UnicodeDecodeError, json.JSONDecodeError) as error:
        raise LabError(f"{path} is not JSON ({str(error).splitlines()[0]}): name a model's config.json") from None
    if not isinstance(found, dict):
        raise LabError(f"{path} holds no object: name a model's config.json")
    if isinstance(found.get("text_config"), dict):  # a model of several kinds of input has its decoder's sizes there
        found = found | found["text_config"]
    if experts := next((key for key in EXPERTS if isinstance(found.get(key), int) and found[key] > 1), None):
        raise LabError(f"{path}: {experts} is {found[experts]}: a mixture of experts is not placed; take a dense model")

    def size(keys, default=None):
        key = next((key for key in keys if found.get(key) is not None), None)
        value = default if key is None else found[key]
        if value is None:
            raise LabError(f"{path} lacks {' or '.join(keys)}: name the config.json of a decoder")
        if type(value) is not int or not 1 <= value <= LARGEST:
            raise LabError(f"{path}: {key} must be a positive integer, not {value!r}")
        return value
    d, heads = size(KEYS["d"]), size(KEYS["heads"])
    kv = size(("num_key_value_heads",), heads)
    if heads % kv:
        raise LabError(f"{path}: {heads} heads are not a multiple of {kv} key and value heads")
    name = found.get("_name_or_path") or found.get("model_type") or path.parent.name or path.stem
    return Model(str(name), size(KEYS["layers"]), d, size(KEYS["ff"], 4 * d), heads, kv, size(("head_dim",), max(1, d // heads)),
                 size(KEYS["vocab"]))


def resident_bytes(model: Model, batch: int, sequence: int, dtype: str) -> int:
    """Weights (with the head's matrix of its own) and the cache of keys and values."""
    cache = 2 * model.layers * batch * sequence * model.kv * model.head
    return itemsize(dtype) * (model.layers * model.layer_weights + 2 * model.vocab * model.d + cache)


def kernels(model: Model, batch: int, sequence: int, dtype: str, phase: str) -> list[Kernel]:
    """The kernels of one step in their order: a prefill of `batch` prompts of `sequence` tokens, or the decoding of one token for each of
    `batch` sequences, of which `sequence` tokens are there."""
    size, prefill = itemsize(dtype), phase == "prefill"
    rows = batch * sequence if prefill else batch
    q, kv, layers = model.heads * model.head, model.kv * model.head, model.layers

    def product(name, m, n, k, count):
        return Kernel(name, phase, f"{m}x{n}x{k}", count, 2 * m * n * k, size * (m * k + n * k), size * m * n, True)

    def norm(name, m, count):  # squares, their sum, and a product with two factors
        return Kernel(name, phase, f"{m}x{model.d}", count, 4 * m * model.d, size * (m + 1) * model.d, size * m * model.d, False)
    pairs = batch * (sequence * (sequence + 1) // 2 if prefill else sequence)  # of a query and a key it sees
    cached = batch * sequence * kv
    queries = sequence if prefill else 1
    attention = Kernel("attention", phase, f"{batch}x{model.heads}({model.kv})x{queries}x{sequence}x{model.head}", layers,
                       4 * pairs * q, size * (rows * q + 2 * cached), size * rows * q, True)
    return [
        Kernel("embedding", phase, f"{rows}x{model.d}", 1, 0, size * rows * model.d, size * rows * model.d, False),
        norm("attention_norm", rows, layers),
        product("qkv", rows, q + 2 * kv, model.d, layers),
        # two products and a sum for each of a pair; the keys and values go into the cache
        Kernel("rope_append", phase, f"{rows}x{q + 2 * kv}", layers, 3 * rows * (q + kv), size * rows * (q + 2 * kv),
               size * rows * (q + 2 * kv), False),
        attention,
        product("output", rows, model.d, q, layers),
        norm("ffn_norm", rows, layers),
        product("gate_up", rows, 2 * model.ff, model.d, layers),
        # silu by an exponential and a division, and the product
        Kernel("silu_product", phase, f"{rows}x{model.ff}", layers, 5 * rows * model.ff, 2 * size * rows * model.ff, size * rows * model.ff,
               False),
        product("down", rows, model.d, model.ff, layers),
        norm("final_norm", batch, 1),
        product("head", batch, model.vocab, model.d, 1),
    ]
