"""With guesses, right ones and wrong ones, every token is that without them, and a step gives as many as were right."""

import pytest
import torch
from transformers import AutoModelForCausalLM, LlamaConfig

from zerocourse.inference import Server, by_model, repeated
from zerocourse.models.gpt2 import build_model

V = 256


def made(seed, factor=3):
    torch.manual_seed(seed)
    model = build_model("gpt2-tiny")
    for param in model.parameters():
        param.data *= factor
    return model


def llama():
    torch.manual_seed(0)
    return AutoModelForCausalLM.from_config(LlamaConfig(
        vocab_size=V, hidden_size=64, intermediate_size=128, num_hidden_layers=3, num_attention_heads=4, num_key_value_heads=2,
        initializer_range=0.2))


def prompts(count=6):
    draw = torch.Generator().manual_seed(1)
    return [torch.randint(V, (int(torch.randint(1, 30, (), generator=draw)),), generator=draw).tolist() for _ in range(count)]


def generate(model, draft=None, new=17, stop=None, choose=None, **room):
    """Tokens of each request, and the server."""
    server = Server(model, **{"blocks": 200, "block_size": 4, "budget": 64} | room, draft=draft, **({} if choose is None else {"choose": choose}))
    requests = [server.add(prompt, new, stop) for prompt in prompts()]
    most = 0
    while server.busy:
        before = server.rows
        server.step()
        most = max(most, server.rows - before)
    assert most <= server.scheduler.budget and not server.pool.taken
    assert all(len(request.generated) == new or request.generated[-1] == stop for request in requests)
    return [request.tokens for request in requests], server


def drafts():
    wrong = iter(range(10**6))
    return {"another model's": by_model(Server(made(7), blocks=100, keep=True)), "its own": by_model(Server(made(0), blocks=100, keep=True)),
            "what stood there before": repeated(), "nonsense": lambda tokens, most: [next(wrong) * 31 % V for _ in range(most)],
            "too many": lambda tokens, most: [1] * 50}


@pytest.mark.parametrize("name", drafts())
@pytest.mark.parametrize("room", ({}, {"blocks": 15}, {"budget": 5}, {"block_size": 1, "blocks": 800}, {"share": False}), ids=str)
def test_tokens_are_those_without_guesses(name, room):
    plain, _ = generate(made(0))
    ours, server = generate(made(0), drafts()[name], **room)
    assert ours == plain and 0 <= server.right <= server.guessed


def test_a_llama_of_hugging_face_too():
    plain, alone = generate(llama())
    ours, server = generate(llama(), by_model(Server(llama(), blocks=100, keep=True)))
    assert ours == plain and server.right == server.guessed > 0 and server.forwards < alone.forwards


def test_right_guesses_save_forwards():
    """The prompt's step gives a token, and with 4 right guesses each further step gives 5: 17 tokens in 5 steps."""
    (_, alone), (_, server) = generate(made(0), budget=1000), generate(made(0), by_model(Server(made(0), blocks=100, keep=True)), budget=1000)
    assert (alone.forwards, server.forwards) == (17, 5)
    assert server.right == server.guessed


def test_a_text_that_repeats_itself_is_guessed():
    propose = repeated(longest=2, most=3)
    assert propose([1, 2, 3, 9, 1, 2], 10) == [3, 9, 1]
    assert propose([1, 2, 3, 9, 1, 2], 1) == [3]
    assert propose([5, 2, 8, 2], 10) == [8, 2]
    assert propose([1, 2, 3], 10) == [] and propose([4], 10) == []


def test_a_guess_behind_the_stop_is_not_taken():
    plain, _ = generate(made(0))
    stop = plain[0][len(prompts()[0]) + 2]
    (ours, server), (alone, _) = generate(made(0), by_model(Server(made(0), blocks=100, keep=True)), stop=stop), generate(made(0), stop=stop)
    assert ours == alone and server.right <= server.guessed


def test_tokens_that_are_drawn_are_drawn_from_the_models_own_distribution():
    """A request alone draws once for each of its tokens, in their order, with and without guesses."""
    drawn = []
    for draft in (None, by_model(Server(made(0), blocks=100, keep=True))):
        source = torch.Generator().manual_seed(3)
        server = Server(made(0, factor=2), blocks=50, draft=draft,
                        choose=lambda logits, source=source: int(torch.multinomial(logits.softmax(-1), 1, generator=source)))
        request = server.add(prompts()[0], 20)
        server.run()
        drawn.append(request.tokens)
    assert drawn[0] == drawn[1]


def test_logits_are_those_of_no_cache():
    model = made(0)
    server = Server(model, blocks=100, block_size=4, draft=by_model(Server(made(0), blocks=100, keep=True)))
    request, seen = server.add(prompts()[1], 12), []
    while server.busy:
        seen += [logits_V for _, logits_V in server.step()]
    model.eval()
    with torch.no_grad():
        exact = model(torch.tensor([request.tokens]))[0][len(prompts()[1]) - 1 : -1]
    torch.testing.assert_close(torch.stack(seen), exact, rtol=1e-4, atol=5e-5)


def test_a_draft_that_would_be_too_long_for_its_model_is_left_out():
    short = made(0)  # 128 positions
    propose = by_model(Server(short, blocks=100))
    assert propose(list(range(127)), 4) == [] and len(propose(list(range(100)), 4)) == 4
