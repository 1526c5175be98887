"""Every token of the server is that of no cache: under pieces of prompts, sharing, preemption, and blocks of one token."""

import copy

import pytest
import torch
import transformers
from transformers import AutoModelForCausalLM, BloomConfig, GPT2Config, LlamaConfig, MistralConfig, Qwen3Config

from zerocourse.errors import BadInput
from zerocourse.inference import BlockPool, Server, repeated
from zerocourse.inference.cache import PagedCache
from zerocourse.models.gpt2 import build_model

V = 256
HUGGING_FACE = {
    "llama": LlamaConfig(vocab_size=V, hidden_size=64, intermediate_size=128, num_hidden_layers=3, num_attention_heads=4, num_key_value_heads=2,
                         initializer_range=0.2),
    "qwen3": Qwen3Config(vocab_size=V, hidden_size=64, intermediate_size=128, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2,
                         head_dim=32, initializer_range=0.2),
    "gpt2 of hugging face": GPT2Config(vocab_size=V, n_embd=64, n_layer=3, n_head=4, initializer_range=0.2)}
SMALL = {"vocab_size": V, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2,
         "head_dim": 8, "max_position_embeddings": 64, "pad_token_id": 0, "initializer_range": 0.2}
LLAMA_4 = SMALL | {"intermediate_size_mlp": 48, "num_local_experts": 2, "num_experts_per_tok": 1, "attention_chunk_size": 8, "floor_scale": 4}
AFMOE = SMALL | {"moe_intermediate_size": 16, "num_experts": 4, "num_experts_per_tok": 2}
FULL = {"layer_types": ["full_attention"] * 2}
WAYS = {"room for all": {"blocks": 200, "block_size": 4, "budget": 64}, "pieces of 7": {"blocks": 200, "block_size": 4, "budget": 7},
        "blocks of one token": {"blocks": 800, "block_size": 1, "budget": 64}, "preempted": {"blocks": 20, "block_size": 4, "budget": 32},
        "nothing shared": {"blocks": 200, "block_size": 4, "budget": 64, "share": False},
        "preempted, nothing shared": {"blocks": 20, "block_size": 4, "budget": 32, "share": False}}


@pytest.fixture(scope="module")
def models():
    """Each with its logits (T, V) of a whole sequence, without a cache."""
    torch.manual_seed(0)
    ours = build_model("gpt2-tiny")
    for param in ours.parameters():
        param.data *= 3  # far from uniform, so that no two logits are the largest
    made = {"ours": ours} | {name: AutoModelForCausalLM.from_config(config) for name, config in HUGGING_FACE.items()}
    plain = {name: copy.deepcopy(model).eval() for name, model in made.items()}
    forward = {name: (lambda tokens, model=model: model(tokens)[0]) if name == "ours"
               else (lambda tokens, model=model: model(input_ids=tokens, use_cache=False).logits[0]) for name, model in plain.items()}
    return made, forward


def requests():
    """Prompts of 1 to 39 tokens, and how many new ones; four prompts share 30 tokens."""
    draw = torch.Generator().manual_seed(1)
    made = [(torch.randint(V, (int(torch.randint(1, 40, (), generator=draw)),), generator=draw).tolist(),
             int(torch.randint(1, 20, (), generator=draw))) for _ in range(8)]
    return made + [((made[0][0] * 30)[:30] + [number], 6) for number in range(4)]


def without_cache(forward, tokens, new):
    tokens, steps = list(tokens), []
    with torch.no_grad():
        for _ in range(new):
            steps.append(forward(torch.tensor([tokens]))[-1])
            tokens.append(int(steps[-1].argmax()))
    return tokens, steps


@pytest.fixture(scope="module")
def wanted(models):
    _, forward = models
    return {name: [without_cache(of, *each) for each in requests()] for name, of in forward.items()}


def served(server, wanted):
    """Requests that come in over time; returns how far any logit is from that without a cache."""
    under_way, worst, todo = {}, 0.0, list(enumerate(requests()))
    while todo or server.busy:
        if todo and (server.forwards % 2 == 0 or not server.busy):
            number, (tokens, new) = todo.pop(0)
            under_way[server.add(tokens, new)] = number
        for request, logits_V in server.step():
            tokens, steps = wanted[under_way[request]]
            worst = max(worst, (logits_V - steps[len(request.generated) - 1]).abs().max().item())
            assert request.tokens == tokens[: len(request.tokens)], "other tokens than without a cache"
    assert all(request.done and request.tokens == wanted[number][0] for request, number in under_way.items())
    assert not server.pool.taken and not any(server.pool.owners), "blocks without a request"
    return worst


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("name", ("ours", *HUGGING_FACE))
def test_tokens_are_those_of_no_cache(models, wanted, name, way):
    server = Server(models[0][name], **WAYS[way])
    assert served(server, wanted[name]) < 5e-5
    assert (server.scheduler.preempted > 0) == way.startswith("preempted")
    if way == "pieces of 7":
        assert server.rows <= 7 * server.forwards


def test_equal_beginnings_are_computed_once(models, wanted):
    alone, shared = (Server(models[0]["ours"], **WAYS[way]) for way in ("nothing shared", "room for all"))
    for server in (alone, shared):
        for tokens, new in requests()[-4:]:
            server.add(tokens, new)
            server.step()
        server.run()
    assert alone.rows - shared.rows == 3 * 28, "three of the four begin with 7 full blocks of 4 tokens"


def test_what_is_over_is_shared_on_purpose_only(models):
    """Weights may change when nothing is under way: what was computed with others is not used."""
    tokens, model = requests()[-1][0], models[0]["ours"]
    rows = {}
    for keep in (False, True):
        server = Server(model, 50, 4, keep=keep)
        for _ in range(2):
            before = server.rows
            server.add(tokens, 1)
            server.run()
        rows[keep] = server.rows - before
    assert rows == {False: 31, True: 3}
    server = Server(copy.deepcopy(model), 50, 4)
    server.add(tokens, 1)
    server.run()
    server.model.lm_head.weight.data.mul_(-1)
    changed = server.add(tokens, 3)
    server.run()
    exact = server.model.eval()
    assert changed.tokens == without_cache(lambda tokens: exact(tokens)[0], tokens, 3)[0]


def test_the_model_is_as_before(models):
    """Its mode, its attention, its gradients: a training goes on between steps."""
    for name in ("ours", "llama"):
        model = copy.deepcopy(models[0][name]).train()
        server = Server(model, 40, 4)
        server.add([1, 2, 3], 2)
        server.run()
        tokens = torch.randint(V, (1, 9), generator=torch.Generator().manual_seed(0))
        loss = model(tokens, tokens) if name == "ours" else model(input_ids=tokens, labels=tokens).loss
        loss.backward()
        assert model.training and all(module.training for module in model.modules())
        exact = copy.deepcopy(models[0][name]).train()
        assert loss.item() == (exact(tokens, tokens) if name == "ours" else exact(input_ids=tokens, labels=tokens).loss).item()


def test_a_token_may_end_it(models, wanted):
    tokens, new = requests()[1]
    generated = wanted["ours"][1][0][len(tokens):]
    server = Server(models[0]["ours"], 40, 4)
    request = server.add(tokens, new, stop=generated[2])
    server.run()
    assert request.done and request.generated == generated[: generated.index(generated[2]) + 1]


def test_token_0_may_end_it(models):
    server = Server(models[0]["ours"], 40, 4, choose=lambda logits_V: 0)
    request = server.add([1, 2, 3], 8, stop=0)
    server.run()
    assert request.done and request.generated == [0]


def test_a_prompt_that_fills_its_blocks_may_come_again(models):
    """Alone and beside others; at least its last token is computed again, because its row says what comes next."""
    tokens, other = [1, 2, 3, 4, 5, 6, 7, 8], [9, 8, 7]
    server, requests = Server(models[0]["ours"], 40, 4), []
    for prompt in (tokens, other, tokens):
        requests.append(server.add(prompt, 5))
        server.step()
    server.run()
    _, forward = models
    assert [request.tokens for request in requests] == [without_cache(forward["ours"], each, 5)[0] for each in (tokens, other, tokens)]
    again = Server(models[0]["ours"], 40, 4, keep=True)
    for _ in range(2):
        request = again.add(tokens, 5)
        again.run()
    assert request.tokens == requests[0].tokens


@pytest.mark.parametrize("change, words", (({"tokens": []}, "has 0 tokens and asks for 3 more"), ({"most_new": 0}, "asks for 0 more"),
                                           ({"tokens": [1] * 127}, "more than the model's 128 positions"),
                                           ({"tokens": [1] * 90}, "need 23 blocks of 4 tokens, and the cache has 10")))
def test_what_has_no_room_is_refused_before_it_waits(models, change, words):
    server = Server(models[0]["ours"], 10, 4)
    with pytest.raises(BadInput, match=words):
        server.add(**{"tokens": [1, 2], "most_new": 3} | change)
    assert not server.busy and server.step() == []


@pytest.mark.parametrize("make, words", ((lambda: Server(torch.nn.Linear(2, 2), 4), "Linear is neither our GPT nor a causal model"),
                                         (lambda: BlockPool(0, 4), "blocks is 0"), (lambda: BlockPool(4, 0), "block size is 0"),
                                         (lambda: Server(build_model("gpt2-tiny"), 4, budget=0), "budget is 0")))
def test_what_cannot_be_served_is_refused(make, words):
    with pytest.raises(BadInput, match=words):
        make()


@pytest.mark.parametrize("config, words", (
    (MistralConfig(vocab_size=V, hidden_size=64, intermediate_size=128, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2,
                   sliding_window=8), "MistralAttention attends with sliding_window: the cache knows plain causal attention alone"),
    (BloomConfig(vocab_size=V, hidden_size=64, n_layer=2, n_head=4), "BloomForCausalLM is neither our GPT nor a causal model of Hugging Face whose")))
def test_another_attention_is_refused_and_never_taken_for_the_plain_one(config, words):
    with pytest.raises(BadInput, match=words):
        server = Server(AutoModelForCausalLM.from_config(config), 10, 4)
        server.add([1, 2, 3], 2)
        server.run()


def of_hugging_face(name, config):
    """A model by the name of its config's class, which an older transformers may not have."""
    if not hasattr(transformers, name):
        pytest.skip(f"this transformers has no {name}")
    torch.manual_seed(0)
    return AutoModelForCausalLM.from_config(getattr(transformers, name)(**config)).eval()


@pytest.mark.parametrize("name, config, words", (
    ("Llama4TextConfig", LLAMA_4 | {"attn_temperature_tuning": False, "layer_types": ["chunked_attention", "full_attention"]},
     "Llama4ForCausalLM attends with attention_chunk_size=8: the cache knows plain causal attention alone"),
    ("Llama4TextConfig", LLAMA_4 | FULL, "Llama4ForCausalLM attends with attn_temperature_tuning=True: the cache knows plain"),
    ("HrmTextConfig", SMALL | {"num_hidden_layers": 4, "num_layers_per_stack": 1, "H_cycles": 1, "L_cycles": 3},
     "layer 0 of HrmTextAttention attends twice in one forward: the cache has one key of a token for each layer"),
    ("DogeConfig", SMALL, "DogeAttention attends with a mask of its own: the cache knows plain causal attention alone"),
    ("AfmoeConfig", AFMOE | {"sliding_window": 8}, "AfmoeAttention attends with sliding_window: the cache knows plain"),
    ("JetMoeConfig", SMALL | {"kv_channels": 8, "num_local_experts": 4},
     "layer 0 of JetMoeAttention has keys of 4 heads with 8 features, and the cache has 2 with 8"),
    ("OlmoHybridConfig", SMALL | {"layer_types": ["linear_attention", "full_attention"]},
     "layer 1 of OlmoHybridAttention has keys of 2 heads with 8 features, and the cache has 3 with 8"),
    ("MiMoV2FlashConfig", SMALL | FULL | {"n_routed_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 16, "v_head_dim": 16},
     "layer 0 of MiMoV2FlashAttention has values of 2 heads with 16 features, and the cache has 2 with 8")))
def test_what_layers_do_besides_is_refused_by_one_sentence(name, config, words):
    model = of_hugging_face(name, config)
    with pytest.raises(BadInput, match=words):
        server = Server(model, 10, 4)
        server.add([1, 2, 3], 2)
        server.run()


@pytest.mark.parametrize("name, config", (
    ("AfmoeConfig", AFMOE | FULL), ("Llama4TextConfig", LLAMA_4 | FULL | {"attn_temperature_tuning": False}),
    ("GPTBigCodeConfig", {"vocab_size": V, "n_embd": 32, "n_layer": 2, "n_head": 4, "initializer_range": 0.2, "num_key_value_heads": 2})))
def test_the_same_model_is_served_where_its_layers_attend_plainly(name, config):
    """afmoe gives its mask by name; chunks of Llama 4 matter where a layer has them; one head of keys is every head, whatever the config says."""
    model, prompts = of_hugging_face(name, config), [[5, 9, 2] * 9, [7], [3, 1, 4, 1, 5, 9, 2, 6]]
    server = Server(model, 40, 4, budget=7)
    requests = [server.add(prompt, 9) for prompt in prompts]
    server.run()
    assert [request.tokens for request in requests] == [without_cache(lambda tokens: model(input_ids=tokens, use_cache=False).logits[0], prompt, 9)[0]
                                                        for prompt in prompts]


def test_longrope_is_served_as_far_as_its_factors_are_the_same():
    """Behind 16 positions transformers takes the long factors for all tokens of the forward, and the cache has keys with the short ones."""
    model = of_hugging_face("Phi3Config", SMALL | {"original_max_position_embeddings": 16, "rope_scaling": {
        "rope_type": "longrope", "type": "longrope", "short_factor": [1.0] * 4, "long_factor": [4.0] * 4}})
    server, prompts = Server(model, 40, 4, draft=repeated()), [[3, 17, 44, 21, 35, 8, 29, 11], [1] * 12, [2]]
    with pytest.raises(BadInput, match="8 tokens and 10 new ones are more than the model's 16 positions: its config has 64, but behind 16 longrope"):
        server.add(prompts[0], 10)
    requests = [server.add(prompt, 17 - len(prompt)) for prompt in prompts]
    server.run()
    assert [request.tokens for request in requests] == [without_cache(lambda tokens: model(input_ids=tokens, use_cache=False).logits[0], prompt,
                                                                      17 - len(prompt))[0] for prompt in prompts]


def test_a_layer_that_does_not_attend_to_the_cache_is_noticed(models):
    model = copy.deepcopy(models[0]["ours"])
    server = Server(model, 10, 4)
    server.add([1, 2, 3], 2)
    model.h[1].attn.forward = lambda x: x
    with pytest.raises(BadInput, match="3 of the 4 layers of GPT attend to the cache"):
        server.step()


def test_the_cache_takes_two_numbers_a_layer_and_feature():
    """2·L·K·D elements a token: 36,864 bytes of GPT-2 in half precision."""
    cache = PagedCache(12, 10, 16, 12, 64, torch.float16, torch.device("cpu"))
    assert cache.nbytes == 160 * 36_864
