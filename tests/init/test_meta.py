"""Blueprints and materialising: nothing is lost, nothing is untied, and any division gives the same model."""

import gc
import threading

import pytest
import torch
from torch import nn

import zerocourse
from zerocourse.errors import BadInput
from zerocourse.init.deferred import Materializer, assert_materializable, deferred_init, materialize_model
from zerocourse.measure.ledger import Ledger
from zerocourse.models.gpt2 import GPT, build_model


def nbytes(tensors) -> int:
    return sum(tensor.untyped_storage().nbytes() for tensor in {id(tensor): tensor for tensor in tensors}.values())


def all_meta(model: nn.Module) -> bool:
    return all(param.is_meta for param in model.parameters())


def sketch(build):
    with deferred_init():
        return build()


def same(a: nn.Module, b: nn.Module) -> bool:
    ours, theirs = a.state_dict(), b.state_dict()
    return list(ours) == list(theirs) and all(torch.equal(ours[key], theirs[key]) for key in ours)


class Net(nn.Module):
    """A bit of everything that torch has, with buffers of all sorts."""

    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(11, 6, padding_idx=0)
        self.norm = nn.BatchNorm1d(6)
        self.lstm = nn.LSTM(6, 4)
        self.attention = nn.MultiheadAttention(4, 2)
        self.convolution = nn.Conv1d(4, 4, 3)
        self.bilinear = nn.Bilinear(3, 4, 2)
        self.prelu = nn.PReLU()
        self.transformer = nn.TransformerEncoder(nn.TransformerEncoderLayer(4, 2, 8, batch_first=True), 2)
        self.head = nn.Linear(6, 11, bias=False)
        self.head.weight = self.embedding.weight
        self.register_buffer("frequencies", 1 / torch.arange(1, 5), persistent=False)
        self.register_buffer("nothing", None)
        self.register_parameter("absent", None)

    def forward(self, x):
        x = self.norm(self.embedding(x).transpose(1, 2)).transpose(1, 2)
        y = self.transformer(self.lstm(x)[0] * self.frequencies)
        return self.head(torch.cat([self.attention(y, y, y)[0], y[..., :2]], -1))


# -- deferred init ---------------------------------------------------------------------------------------------------


def test_parameters_are_meta_and_buffers_real():
    model, real = sketch(Net), Net()
    assert all_meta(model)
    assert_materializable(model)
    for (name, ours), (_, theirs) in zip(model.named_buffers(), real.named_buffers(), strict=True):
        assert torch.equal(ours, theirs), name

    def described(model):
        return [(name, p.shape, p.dtype, p.stride(), type(p), p.requires_grad) for name, p in model.named_parameters()]

    assert described(model) == described(real)


def test_ties_are_kept():
    assert (model := sketch(Net)).head.weight is model.embedding.weight

    class Shared(nn.Module):
        def __init__(self):
            super().__init__()
            weight = nn.Parameter(torch.zeros(3, 3))
            self.a, self.b = nn.Linear(3, 3), nn.Linear(3, 3)
            self.a.weight = weight
            self.b.weight = weight  # the real object again, not the one that a has
            self.listed = nn.ParameterList([weight, torch.zeros(2)])
            self.keyed = nn.ParameterDict({"w": weight, "frozen": nn.Parameter(torch.ones(2), requires_grad=False)})

    model = sketch(Shared)
    assert all_meta(model)
    assert model.a.weight is model.b.weight is model.listed[0] is model.keyed["w"]
    assert not model.keyed["frozen"].requires_grad
    assert len(list(model.parameters())) == len(list(Shared().parameters())) == 5


def test_class_and_attributes_are_kept():
    class Special(nn.Parameter):
        pass

    class Module(nn.Module):
        def __init__(self):
            super().__init__()
            weight = Special(torch.zeros(4, 2).t())
            weight.no_decay = True
            self.weight = weight
            assert self.weight.no_decay
            self.low = nn.Parameter(torch.zeros(3, dtype=torch.bfloat16))
            self.count = nn.Parameter(torch.zeros(3, dtype=torch.int64), requires_grad=False)

    model = sketch(Module)
    assert type(model.weight) is Special and model.weight.no_decay and model.weight.stride() == (1, 2)
    assert model.low.dtype is torch.bfloat16 and model.count.dtype is torch.int64


def test_everything_that_fills_parameters_runs_in_init():
    def build():
        weight = nn.Linear(8, 8).weight
        init = nn.init
        for fill in (init.uniform_, init.normal_, init.trunc_normal_, init.ones_, init.zeros_, init.eye_,
                     init.orthogonal_, init.xavier_uniform_, init.xavier_normal_, init.kaiming_uniform_):
            fill(weight)
        init.sparse_(weight, 0.5)
        weight.data.normal_()
        with torch.no_grad():
            weight[0].fill_(1)
            weight.copy_(torch.ones(8, 8))
        return weight

    assert sketch(build).is_meta


def test_it_ends_with_its_block_and_nests():
    with deferred_init():
        with deferred_init():
            assert all_meta(nn.Linear(2, 2))
        assert all_meta(nn.Linear(2, 2))
    assert not nn.Linear(2, 2).weight.is_meta
    with pytest.raises(ZeroDivisionError), deferred_init():
        raise ZeroDivisionError
    assert not nn.Linear(2, 2).weight.is_meta


def test_other_threads_build_for_real():
    built = []
    with deferred_init():
        thread = threading.Thread(target=lambda: built.append(nn.Linear(2, 2)))
        thread.start()
        thread.join()
    assert not built[0].weight.is_meta


@pytest.mark.parametrize("read", [
    lambda w: w.sum().item(), lambda w: float(w.detach()[0, 0]), lambda w: w.tolist(), lambda w: bool(w.any()),
    lambda w: w.nonzero(), lambda w: w.detach().numpy(), lambda w: w.cpu(), lambda w: torch.ones(2, 2).copy_(w),
    lambda w: setattr(w, "data", torch.ones(2, 2))])
def test_reading_values_is_refused_by_module_and_line(read):
    class Curious(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = nn.Linear(2, 2)
            read(self.inner.weight)

    with pytest.raises(BadInput, match=r"^Curious\.__init__ \(test_meta\.py:\d+\) reads the values of .*forward"):
        sketch(lambda: nn.Sequential(Curious()))


def test_the_line_is_the_users_and_not_torchs():
    class Mover(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = nn.Sequential(nn.Linear(2, 2))
            self.inner.cpu()

    with pytest.raises(BadInput, match=r"^Mover\.__init__ \(test_meta\.py:"):
        sketch(Mover)


def test_other_errors_pass_through():
    with pytest.raises(RuntimeError, match="metadata of mine") as caught, deferred_init():
        raise RuntimeError("metadata of mine")
    assert type(caught.value) is RuntimeError


def test_meta_buffers_are_refused_by_name():
    with torch.device("meta"):
        plain = nn.Sequential(Net())
    with pytest.raises(BadInput, match=r"^buffer 0\.frequencies of Net .*deferred_init"):
        assert_materializable(plain)
    with pytest.raises(BadInput, match="buffer"):
        materialize_model(plain)

    class Scaled(nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = nn.Parameter(torch.ones(3))
            self.norm = self.weight.detach().norm()

    with pytest.raises(BadInput, match=r"^tensor norm of Scaled"):
        assert_materializable(sketch(Scaled))


# -- materialising --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("build", [Net, lambda: build_model("gpt2-tiny", n_layer=2)])
def test_the_whole_model_equals_module_by_module_in_any_order(build):
    whole = materialize_model(sketch(build), seed=3)
    assert not any(param.is_meta for param in whole.parameters())
    model = sketch(build)
    values = {}
    for name, module in reversed(list(model.named_modules())):  # any order
        before = dict(module.named_parameters(recurse=False))
        values |= Materializer(model, seed=3).module(name)
        assert all(param is before[key] and param.is_meta for key, param in module.named_parameters(recurse=False))
    assert values.keys() == dict(whole.named_parameters()).keys()  # each once, under its first name
    for name, param in whole.named_parameters():
        assert torch.equal(param, values[name]), name
    with torch.no_grad():  # the same again when some are installed, and filled with something else
        first = Materializer(model)
        for name in list(first.params)[::2]:
            first.install(name, torch.full_like(values[name], 7))
    rest = [name for name, param in model.named_parameters() if param.is_meta]
    again = dict(Materializer(model, seed=3).stream(dict(model.named_parameters())))
    assert list(again) == rest and all(torch.equal(again[name], values[name]) for name in rest)
    assert all((param == 7).all() for param in model.parameters() if not param.is_meta)


def test_materialised_models_run_and_stay_tied():
    model = materialize_model(sketch(Net))
    assert model.head.weight is model.embedding.weight
    assert (model.embedding.weight[0] == 0).all()  # the padding row
    assert (model.attention.out_proj.bias == 0).all()  # set by the attention around it
    assert (model.prelu.weight == 0.25).all()
    model(torch.randint(11, (2, 5))).sum().backward()  # the LSTM keeps a list of its weights
    assert all(param.grad is not None for param in model.lstm.parameters())


def test_a_recurrent_layer_runs_with_what_is_installed():
    model = sketch(lambda: nn.LSTM(3, 2))
    materializer = Materializer(model)
    for name, value in materializer.stream(materializer.params):
        materializer.install(name, value)
    x, built = torch.randn(4, 3), nn.LSTM(3, 2)
    built.load_state_dict(model.state_dict())
    assert torch.equal(model(x)[0], built(x)[0])


def test_a_stream_gives_what_was_asked_for():
    materializer = Materializer(sketch(lambda: build_model("gpt2-tiny")))
    assert [name for name, _ in materializer.stream(["ln_f.bias", "h.1.attn.c_proj.weight"])] == [
        "h.1.attn.c_proj.weight", "ln_f.bias"]
    assert list(materializer.stream([])) == []


def test_an_optimizer_made_before_has_the_same_parameters():
    model = sketch(lambda: nn.Linear(3, 3))
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    before = materialize_model(model).weight.detach().clone()
    model(torch.ones(1, 3)).sum().backward()
    optimizer.step()
    assert not torch.equal(model.weight, before)


def test_seeds_and_names_decide_and_nothing_else():
    model = sketch(lambda: nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4)))
    torch.manual_seed(5)
    state = torch.get_rng_state()
    first = Materializer(model, seed=1).module("0")["0.weight"]
    assert torch.equal(torch.get_rng_state(), state)  # the global generator is untouched
    torch.manual_seed(6)
    assert torch.equal(Materializer(model, seed=1).module("0")["0.weight"], first)
    assert torch.equal(Materializer(model[:1], seed=1).module("0")["0.weight"], first)  # whatever else is in the model
    assert not torch.equal(Materializer(model, seed=1).module("1")["1.weight"], first)
    assert not torch.equal(Materializer(model, seed=2).module("0")["0.weight"], first)


def test_the_values_are_what_building_would_have_drawn():
    torch.manual_seed(0)
    model, built = materialize_model(sketch(lambda: nn.Linear(300, 400))), nn.Linear(300, 400)
    assert model.weight.std().item() == pytest.approx(built.weight.std().item(), rel=0.02)
    model, built = materialize_model(sketch(lambda: build_model("gpt2-tiny"))), build_model("gpt2-tiny")
    for (name, ours), (_, theirs) in zip(model.named_parameters(), built.named_parameters(), strict=True):
        if theirs.std() == 0:
            assert torch.equal(ours, theirs), name
        else:
            assert ours.std().item() == pytest.approx(theirs.std().item(), rel=0.05), name


def test_the_order_of_initialisers():
    class Inner(nn.Module):
        def __init__(self):
            super().__init__()
            self.a, self.b, self.c, self.d = (nn.Parameter(torch.empty(2)) for _ in range(4))

        def reset_parameters(self):
            for param in self.parameters():
                nn.init.constant_(param, 1)

    class Around(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = Inner()

        def reset_parameters(self):
            nn.init.constant_(self.inner.b, 2)

    class Root(nn.Module):
        def __init__(self):
            super().__init__()
            self.around = Around()

        def _init_weights(self, module):
            if isinstance(module, Inner):
                nn.init.constant_(module.c, 3)
            if isinstance(module, Root):
                nn.init.constant_(module.around.inner.d, 4)

    model = materialize_model(sketch(Root))
    assert [param[0].item() for param in model.parameters()] == [1, 2, 3, 4]
    model = materialize_model(sketch(Root), init_fn=lambda module: [p.fill_(5) for p in module.parameters()])
    assert [param[0].item() for param in model.parameters()] == [5, 5, 5, 5]
    alone = sketch(Inner)
    assert {name: value[0].item() for name, value in Materializer(alone).module("").items()} == dict.fromkeys("abcd", 1)


def test_a_model_in_a_model_fills_its_own():
    class Old(nn.Linear):
        def _init_weights(self):  # takes no module: some models call theirs in __init__
            raise AssertionError

    class Inner(nn.Module):
        def __init__(self):
            super().__init__()
            self.linear = Old(2, 2)

        def _init_weights(self, module):
            if isinstance(module, nn.Linear):
                nn.init.constant_(module.weight, 1)
                nn.init.constant_(module.bias, 1)

    class Outer(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner, self.linear = Inner(), nn.Linear(2, 2)

        def _init_weights(self, module):
            if isinstance(module, nn.Linear):
                nn.init.constant_(module.weight, 2)
            if isinstance(module, Outer):
                nn.init.constant_(module.inner.linear.bias, 3)

    model = materialize_model(sketch(Outer))
    assert (model.inner.linear.weight == 1).all() and (model.inner.linear.bias == 3).all()
    assert (model.linear.weight == 2).all()


def test_a_tied_parameter_may_be_filled_by_any_of_its_names():
    class Tied(nn.Module):
        def __init__(self):
            super().__init__()
            self.first, self.second = nn.Embedding(3, 2), nn.Linear(2, 3)
            self.second.weight = self.first.weight

        def reset_parameters(self):
            nn.init.constant_(self.second.weight, 9)

    model = materialize_model(sketch(Tied))
    assert (model.first.weight == 9).all() and model.second.weight is model.first.weight


def test_no_initialiser_can_touch_what_is_installed():
    class Greedy(nn.Module):
        def __init__(self):
            super().__init__()
            self.first, self.second = nn.Linear(2, 2), nn.Linear(2, 2)

        def _init_weights(self, module):
            for param in self.parameters():  # everything, whatever it is asked for
                nn.init.normal_(param)

    model = sketch(Greedy)
    materializer = Materializer(model)
    later = materializer.module("second")
    for name, value in materializer.module("first").items():
        materializer.install(name, value)
    kept = model.first.weight.detach().clone()
    assert torch.equal(materializer.module("second")["second.weight"], later["second.weight"])
    assert torch.equal(model.first.weight, kept)


def test_bias_that_init_weights_forgets_is_what_torch_gives():
    class Root(nn.Module):
        def __init__(self):
            super().__init__()
            self.linear, self.norm = nn.Linear(4, 4), nn.LayerNorm(4)

        def _init_weights(self, module):
            if isinstance(module, nn.Linear):
                nn.init.zeros_(module.weight)

    model = materialize_model(sketch(Root))
    assert (model.linear.weight == 0).all() and model.linear.bias.abs().sum() > 0 and (model.norm.weight == 1).all()


class Gate(nn.Module):
    def __init__(self, dtype=torch.float32):
        super().__init__()
        self.scale = nn.Parameter(torch.empty(3, dtype=dtype), requires_grad=dtype.is_floating_point)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.complex64, torch.int32])
def test_a_parameter_nothing_fills_is_refused_by_name(dtype):
    model = sketch(lambda: nn.ModuleDict({"gate": Gate(dtype)}))
    with pytest.raises(BadInput, match=r"gate\.scale of Gate has no values: nothing sets it; .*reset_param.*init_fn"):
        materialize_model(model)
    assert all_meta(model)  # as it was


def test_init_functions_that_forget_something_are_refused_by_name():
    def weights_only(module):
        if hasattr(module, "weight"):
            nn.init.ones_(module.weight)

    model = sketch(lambda: nn.Sequential(nn.Linear(2, 2)))
    with pytest.raises(BadInput, match=r"parameter 0\.bias of Linear has no values: init_fn left it unset; let"):
        materialize_model(model, init_fn=weights_only)
    with pytest.raises(BadInput, match=r"parameter 0\.weight"):  # a part of it only
        materialize_model(model, init_fn=lambda module: [param[0].fill_(1) for param in module.parameters()])
    assert all_meta(model)

    class Root(nn.Sequential):
        def _init_weights(self, module):
            pass

    with pytest.raises(BadInput, match=r"parameter 0\.scale of Gate has no values: Root\._init_weights left it unset"):
        materialize_model(sketch(lambda: Root(Gate())))


def test_an_init_function_may_assign_a_new_parameter_of_the_same_shape():
    def assign(size):
        def init_fn(module):
            module.scale = nn.Parameter(torch.full((size,), 2.0))
        return init_fn

    model = sketch(Gate)
    assert Materializer(model, init_fn=assign(3)).module("")["scale"].tolist() == [2, 2, 2]
    with pytest.raises(BadInput, match=r"init_fn replaced scale of Gate by something else than a tensor \(3,\)"):
        Materializer(model, init_fn=assign(4)).module("")
    assert model.scale.is_meta


def test_an_initialiser_that_reads_others_is_refused_and_its_own_errors_pass():
    class Root(nn.Module):
        def __init__(self):
            super().__init__()
            self.a, self.b = nn.Linear(2, 2), nn.Linear(2, 2)

        def reset_parameters(self):
            self.b.weight.data = torch.ones(2, 2)

    with pytest.raises(BadInput, match=r"Root\.reset_parameters cannot fill the Linear"):
        materialize_model(sketch(Root))

    def broken(module):
        raise RuntimeError("mine")

    with pytest.raises(RuntimeError, match="^mine$"):
        materialize_model(sketch(Gate), init_fn=broken)


def test_lazy_modules_are_refused_by_name():
    for model in (sketch(lambda: nn.Sequential(nn.LazyLinear(3))), nn.Sequential(nn.LazyLinear(3, device="meta"))):
        with pytest.raises(BadInput, match=r"0\.weight of LazyLinear has no shape yet"):
            materialize_model(model)


def test_scalars_empty_parameters_and_part_real_models():
    class Odd(nn.Module):
        def __init__(self):
            super().__init__()
            self.scalar, self.empty = nn.Parameter(torch.zeros(())), nn.Parameter(torch.empty(0, 3))

        def reset_parameters(self):
            nn.init.ones_(self.scalar)

    real = nn.Linear(2, 2)
    kept = real.weight.detach().clone()
    model = sketch(lambda: nn.Sequential(Odd(), real))  # a module that was there before stays real
    materialize_model(model)
    assert model[0].scalar == 1 and model[0].empty.shape == (0, 3)
    assert torch.equal(model[1].weight, kept)


def test_one_seed_gives_one_model_in_every_precision():
    in_fp32 = Materializer(sketch(lambda: nn.Linear(8, 8))).module("")
    half = sketch(lambda: nn.Linear(8, 8).to(torch.bfloat16))
    assert half.weight.dtype is torch.bfloat16 and half.weight.is_meta
    in_bf16 = Materializer(half).module("")
    assert in_bf16["weight"].dtype is torch.bfloat16
    assert torch.equal(in_bf16["weight"], in_fp32["weight"].bfloat16())


def test_parameters_that_are_watched_are_refused():
    import weakref

    model = sketch(lambda: nn.Linear(2, 2))
    watcher = weakref.ref(model.bias)
    with pytest.raises(BadInput, match="parameter bias cannot get its memory while"):
        materialize_model(model)
    assert watcher() is model.bias


# -- Hugging Face ---------------------------------------------------------------------------------------------------


def gpt2():
    from transformers import GPT2Config, GPT2LMHeadModel

    return GPT2LMHeadModel(GPT2Config(n_layer=2, n_head=2, n_embd=64, vocab_size=300, n_positions=64, bos_token_id=0,
                                      eos_token_id=0))


def llama(tied=False):
    from transformers import LlamaConfig, LlamaForCausalLM

    return LlamaForCausalLM(LlamaConfig(num_hidden_layers=2, hidden_size=64, intermediate_size=128, vocab_size=300,
                                        num_attention_heads=4, num_key_value_heads=2, tie_word_embeddings=tied))


def t5():
    from transformers import T5Config, T5ForConditionalGeneration

    return T5ForConditionalGeneration(T5Config(num_layers=1, d_model=64, d_kv=16, d_ff=128, num_heads=4, vocab_size=300,
                                                 decoder_start_token_id=0))


@pytest.mark.parametrize("build", [gpt2, llama, lambda: llama(tied=True), t5])
def test_hugging_face_models(build):
    torch.manual_seed(0)
    real = build()
    model = sketch(build)
    assert all_meta(model)
    assert [name for name, _ in model.named_parameters()] == [name for name, _ in real.named_parameters()]  # ties too
    for param in model.parameters():
        param._is_hf_initialized = True  # as from_pretrained leaves it: "needs no initialisation"
    materialize_model(model, seed=1)
    for (name, ours), (_, theirs) in zip(model.named_buffers(), real.named_buffers(), strict=True):
        assert torch.equal(ours, theirs), name  # rotary frequencies are in no state dict, and still right
    for (name, ours), (_, theirs) in zip(model.named_parameters(), real.named_parameters(), strict=True):
        if theirs.numel() > 2000:  # what the model's _init_weights sets from the layers around it too
            assert ours.std().item() == pytest.approx(theirs.std().item(), rel=0.06), name
        elif theirs.std() == 0:
            assert torch.equal(ours, theirs), name
    tokens = torch.randint(300, (2, 8))
    assert model(input_ids=tokens, labels=tokens).loss.isfinite()
    assert same(model, materialize_model(sketch(build), seed=1))


# -- memory ---------------------------------------------------------------------------------------------------------


def test_the_peak_of_init_is_a_shard_and_one_module():
    def build():
        return build_model("gpt2-tiny", n_layer=8, vocab_size=1024)

    def peak(work):
        gc.collect()
        with Ledger() as ledger:
            kept = work()
            return ledger.peak, kept

    whole, model = peak(build)
    size = nbytes(model.parameters())
    one_module = max(nbytes(module.parameters(recurse=False)) for module in model.modules())
    one_param = max(param.nbytes for param in model.parameters())
    assert whole >= size

    sketching, model = peak(lambda: sketch(build))
    assert sketching <= one_param * 1.01

    def shard():
        shards = []
        for _name, value in Materializer(model).stream(dict(model.named_parameters())):
            shards.append(value.flatten()[: -(-value.numel() // 8)].clone())
        return shards

    sharding, shards = peak(shard)
    print(f"whole {whole:,}; deferred {sketching:,}; shard by shard {sharding:,}; the shard {nbytes(shards):,}")
    slack = 20_000  # the state of the random generator, saved twice
    assert nbytes(shards) < size / 7.9
    assert sharding <= size / 8 + one_module * 1.13 + slack  # one value's slice is copied while the value is held
    assert sharding < whole / 2
    assert isinstance(model, GPT) and all_meta(model)


def test_half_precision_takes_one_value_beyond_its_fp32():
    class Wide(nn.Module):
        def __init__(self):
            super().__init__()
            self.weights = nn.ParameterList(torch.empty(100_000, dtype=torch.bfloat16) for _ in range(4))

        def reset_parameters(self):
            for weight in self.weights:
                nn.init.ones_(weight)

    materializer = Materializer(sketch(Wide))
    with Ledger() as ledger:
        values = materializer.module("weights")
        assert ledger.alive == nbytes(values.values()) == 800_000
        assert ledger.peak <= 1_600_000 + 200_000 + 20_000


# -- values that __init__ gives ----------------------------------------------------------------------------------------

class Learned(nn.Module):
    """Parameters whose values are made in `__init__`, beside some that only initialisers fill."""

    def __init__(self):
        super().__init__()
        self.token = nn.Parameter(torch.ones(3) * 0.5 + torch.arange(3.0))
        self.scale = nn.Parameter(torch.full((2, 2), 0.25, dtype=torch.bfloat16))
        self.drawn = nn.Parameter(torch.empty(2, 3).normal_())
        self.lost = nn.Parameter(torch.empty(2), requires_grad=False)
        self.layer = nn.Linear(3, 2)
        self.tied = self.token

    def _init_weights(self, module):
        if module is self:
            with torch.no_grad():
                self.lost.fill_(7.0)


def test_values_that_init_gives_arrive():
    with deferred_init():
        torch.manual_seed(5)
        model = Learned()
    assert all(param.is_meta for param in model.parameters())
    torch.manual_seed(5)
    plain = Learned()
    materialize_model(model)
    for name in ("token", "scale", "drawn"):
        assert torch.equal(getattr(model, name), getattr(plain, name)) and getattr(model, name).dtype is getattr(plain, name).dtype
    assert model.tied is model.token and model.lost.tolist() == [7.0, 7.0]
    assert not any(name.startswith("_zerocourse") for param in model.parameters() for name in vars(param))


def given_on_two_ranks() -> dict:
    with deferred_init():
        torch.manual_seed(torch.distributed.get_rank())  # rank 0's count
        model = Learned()
    return zerocourse.state_dict(zerocourse.shard(model, stage=3)[0])


def test_values_that_init_gives_are_rank_0s(pool):
    torch.manual_seed(0)
    plain = Learned()
    for state in pool(2).run(given_on_two_ranks):
        assert torch.equal(state["drawn"], plain.drawn) and torch.equal(state["token"], plain.token)


def half_filled(tensor):
    tensor[:2].fill_(1)
    return tensor


@pytest.mark.parametrize("make", [lambda: torch.empty(4), lambda: torch.empty(8)[:4] * 2, lambda: torch.Tensor(4),
                                  lambda: torch.empty(2, 4)[:1].fill_(1).expand(2, 4).new_empty(2), lambda: half_filled(torch.empty(4)),
                                  lambda: torch.empty(2, 4).copy_(torch.ones(4))[0].new_empty(4)])
def test_memory_that_nobody_filled_has_no_values(make):
    class Unfilled(nn.Module):
        def __init__(self):
            super().__init__()
            torch.ones(4)  # whose memory the next tensor may get
            self.scale = nn.Parameter(make())

    with deferred_init():
        model = Unfilled()
    with pytest.raises(BadInput, match="scale of Unfilled has no values"):
        materialize_model(model)
