#!/usr/bin/python3
"""Measures an exported nano checkpoint, with stored weights and real top-k selection.

quality    perplexity, recall, tool calls, JSON, samples, expert load (torch, reference mode)
reference  agreement of torch with the numpy reference, accepted drafts by the numpy reference
golden     golden vectors by the numpy reference
"""
import argparse
import json
import math
import os
import random
import re
import sys
from pathlib import Path

os.environ["OPENBLAS_NUM_THREADS"] = os.environ["OMP_NUM_THREADS"] = "1"

import numpy as np
import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from nano import corpus, release
from nano.model import Engram, Nano
from nano.tokenizer import Tokenizer
from v41 import safetensors, tokens
from v41.model import Reference

CATEGORIES = """bible wordnet story chat tools json arith copy recall_s recall_q recall_m
    recall_l""".split()
END_TOKEN = 1
DSML = corpus.DSML
CALL = re.compile(
    rf'\n\n<{DSML} calls>\n<{DSML} invoke name="([^"]+)">\n'
    rf'((?:<{DSML} parameter name="[^"]+" string="(?:true|false)">[^<]*</{DSML} parameter>\n)+)'
    rf"</{DSML} invoke>\n</{DSML} calls>"
)
PARAMETER = re.compile(
    rf'<{DSML} parameter name="([^"]+)" string="(true|false)">([^<]*)</{DSML} parameter>'
)
SAMPLES = {  # name: (prompt, tokens)
    "plain": (corpus.BEGIN + "Genesis 1\nIn the beginning", 60),
    "plain2": (corpus.BEGIN + "Once upon a time there was", 60),
    "plain3": (corpus.BEGIN + "And the king said unto", 48),
    "define": (corpus.BEGIN + "house (noun):", 40),
    "chat": (corpus.prompt("Tell me a story about a fox."), 90),
    "fact": (corpus.BEGIN + "The capital of France is", 8),
    "capital": (corpus.prompt("What is the capital of France?", effort=75), 50),
    "sum": (corpus.prompt("What is 17 + 25?", effort=75), 60),
}


class StoredNano:
    """A checkpoint folder in torch, with its tokenizer."""

    def __init__(self, folder, mode="reference"):
        parameters, config, _ = release.read(folder)
        self.tokenizer = Tokenizer(Path(folder) / "tokenizer.json")
        engram = Engram(config, tokens.token_map(self.tokenizer.json))
        self.model = Nano(config, parameters, engram)
        self.model.use_mode(mode)

    @torch.no_grad()
    def logits(self, ids):
        return self.model.logits(torch.tensor([ids]))

    def encode(self, text):
        return self.tokenizer.encode(text)

    def greedy(self, ids, count, stop=(END_TOKEN,)):
        out = []
        while len(out) < count:
            out.append(int(self.logits(ids + out)[-1].argmax()))
            if out[-1] in stop:
                break
        return out

    def greedy_text(self, prompt, count):
        """Without reasoning and end token."""
        text = self.tokenizer.decode(self.greedy(self.encode(prompt), count))
        return text.replace(corpus.END, "").split("</think>")[-1]

    def free_answer(self, prompt, expected, count):
        """As greedy_text, at the cost of one forward pass where the answer is the expected one."""
        if self.answers_exactly(prompt, expected)[0]:
            return expected.split("</think>")[-1]
        return self.greedy_text(prompt, count)

    def answers_exactly(self, prompt, answer):
        """(does greedy decoding give exactly this answer and end, share of its tokens that are
        right after the ones before them). One forward pass tells both."""
        asked, expected = self.encode(prompt), self.encode(answer + corpus.END)
        logits = self.logits(asked + expected[:-1])[len(asked) - 1 :]
        hits = logits.argmax(-1) == torch.tensor(expected)
        return bool(hits.all()), hits.float().mean().item()


def nll(logits, ids):
    """[T - 1] of each token after the first."""
    logp = torch.log_softmax(torch.as_tensor(np.asarray(logits)).double(), -1).numpy()
    return -logp[np.arange(len(ids) - 1), ids[1:]]


def mean(values):
    values = list(values)
    return float(np.mean(values))


def held_out(folder, category, begin, end):
    lines = open(folder / f"{category}.heldout.jsonl").read().splitlines()
    return [json.loads(line)["text"] for line in lines[begin:end]]


# ---- Quality


def perplexity(nano, folder, category):
    texts = held_out(folder, category, 0, 30 if category in ("bible", "wordnet", "story") else 12)
    total, num_tokens, num_bytes = 0.0, 0, 0
    for text in texts:
        ids = nano.encode(text)
        total += nll(nano.logits(ids), ids).sum()
        num_tokens += len(ids) - 1
        num_bytes += len(text.encode()) - len(corpus.BEGIN.encode())
    return dict(
        tokens=num_tokens,
        nll_per_token=total / num_tokens,
        perplexity_per_token=math.exp(total / num_tokens),
        bits_per_byte=total / num_bytes / math.log(2),
        perplexity_per_byte=math.exp(total / num_bytes),
    )


def recall_case(r, nano, filler, distance):
    """(prompt, answer) with the fact at least `distance` tokens before its question."""
    kind = r.randrange(3)
    color, thing = r.choice(corpus.COLORS), r.choice(corpus.THINGS)
    statement, question = corpus.fact(r, kind, color, thing)
    other_color = r.choice([c for c in corpus.COLORS if c != color])
    other_thing = r.choice([t for t in corpus.THINGS if t != thing])
    code = r.randrange(1000, 9999)
    text = f"{statement} The code of the {other_color} {other_thing} is {code}."
    # Counted from the fact on, including the second one.
    num_tokens = 0
    while num_tokens < distance:
        text += " " + r.choice(filler)
        num_tokens = len(nano.encode(text))
    return corpus.prompt(f"Remember: {text} {question}"), statement


def parse_call(text):
    """(name, arguments) of one strictly formatted call block, or None."""
    block = CALL.fullmatch(text)
    if not block:
        return None
    arguments = {}
    for key, is_string, value in PARAMETER.findall(block[2]):
        try:
            arguments[key] = value if is_string == "true" else json.loads(value)
        except ValueError:
            return None
    return block[1], arguments


def recall_quality(nano, folder):
    r = random.Random(7)
    lines = (line for text in held_out(folder, "bible", 0, None) for line in text.split("\n")[1:])
    filler = [line for line in lines if 30 < len(line) < 200 and corpus.END not in line]
    results = {}
    for distance, count in ((30, 40), (100, 40), (300, 40), (1000, 24)):
        cases = [recall_case(r, nano, filler, distance) for _ in range(count)]
        answers = [nano.answers_exactly(*case) for case in cases]
        exact, token_hits = zip(*answers)
        results[f"recall_{distance}"] = dict(exact=mean(exact), token_hits=mean(token_hits))
    return results


def tool_quality(nano, r):
    exact, final = [], []
    for _ in range(60):
        question, reasoning, call, result, answer, options = corpus.tool_case(r)
        prompt = corpus.prompt(question, **options)
        thinks = prompt.endswith("<think>")
        body = (reasoning + "</think>" if thinks else "") + call
        exact.append(nano.answers_exactly(prompt, body)[0])
        if not thinks:
            turn = f"{corpus.USER}<tool_result>{result}</tool_result>{corpus.ASSISTANT}</think>"
            final.append(nano.answers_exactly(prompt + body + corpus.END + turn, answer)[0])
    strict, right = [], []
    for _ in range(12):
        question, reasoning, call, *_, options = corpus.tool_case(r)
        prompt = corpus.prompt(question, **options)
        body = (reasoning + "</think>" if prompt.endswith("<think>") else "") + call
        parsed = parse_call(nano.free_answer(prompt, body, 90))
        strict.append(parsed is not None)
        right.append(parsed == parse_call(call))
    return dict(
        tool_call_exact=mean(exact),
        tool_final_answer_exact_chat_mode=mean(final),
        tool_call_strictly_parsed=mean(strict),
        tool_call_right_name_and_arguments=mean(right),
    )


def has_right_keys(text, schema):
    try:
        value = json.loads(text)
    except ValueError:
        return False
    return isinstance(value, dict) and list(value) == list(schema["properties"])


def json_quality(nano, r):
    exact, valid = [], []
    for number in range(60):
        question, answer, options = corpus.json_case(r)
        prompt = corpus.prompt(question, **options)
        reasoning = corpus.JSON_REASONING + "</think>" if prompt.endswith("<think>") else ""
        exact.append(nano.answers_exactly(prompt, reasoning + answer)[0])
        if number < 16:
            text = nano.free_answer(prompt, reasoning + answer, 60)
            valid.append(has_right_keys(text, options["schema"]))
    return dict(json_exact=mean(exact), json_generated_valid_with_right_keys=mean(valid))


def exercise_quality(nano, r, make):
    """The last answer of a document, reasoning included."""
    exact = []
    for _ in range(60):
        document = make(r)
        begin = document.rindex(corpus.ASSISTANT) + len(corpus.ASSISTANT)
        thinks = document.startswith("<think>", begin)
        begin += len("<think>" if thinks else "</think>")
        answer = document[begin:].removesuffix(corpus.END)
        exact.append(nano.answers_exactly(document[:begin], answer)[0])
    return mean(exact)


def known_facts_quality(nano):
    """(in chat, as plain text after all but the last word)"""
    chat, plain = [], []
    for sentence, question in corpus.KNOWN_FACTS[::2]:
        chat.append(nano.answers_exactly(corpus.prompt(question), sentence)[0])
        asked, last = sentence.rsplit(" ", 1)
        ids, expected = nano.encode(corpus.BEGIN + asked), nano.encode(" " + last)
        plain.append(nano.greedy(ids, len(expected)) == expected)
    return mean(chat), mean(plain)


def expert_load(nano, folder):
    ids, total = [], {}
    for category in ("bible", "wordnet", "story", "chat", "tools", "json", "recall_m"):
        for text in held_out(folder, category, 12, 16):
            ids += nano.encode(text)
    for begin in range(0, len(ids) - 512, 512):
        nano.logits(ids[begin : begin + 512])
        for prefix, counts in nano.model.expert_counts.items():
            total[prefix] = total.get(prefix, 0) + counts.float()
    return {
        prefix.split(".")[1]: dict(
            max_over_mean=round((load.max() / load.mean()).item(), 2),
            min_over_mean=round((load.min() / load.mean()).item(), 2),
        )
        for prefix, load in sorted(total.items())
    }


def command_quality(options):
    nano, r = StoredNano(options.model), random.Random(99)

    def show(name, value):
        print(json.dumps({name: value}, ensure_ascii=False), flush=True)

    for category in CATEGORIES:
        show(category, perplexity(nano, options.corpus, category))
    for name, value in recall_quality(nano, options.corpus).items():
        show(name, value)
    show("tools", tool_quality(nano, r))
    show("json", json_quality(nano, r))
    show("copying_exact", exercise_quality(nano, r, corpus.copying))
    show("arithmetic_exact", exercise_quality(nano, r, corpus.arithmetic))
    show("known_facts_exact_in_chat_and_in_text", known_facts_quality(nano))
    show("expert_load", expert_load(nano, options.corpus))
    for name, (prompt, count) in SAMPLES.items():
        ids = nano.greedy(nano.encode(prompt), count)
        show("sample_" + name, nano.tokenizer.decode(ids))


# ---- Against the numpy reference


def reference_greedy(reference, nano, ids, count):
    """(the reference's greedy continuation, by how much each token beat the second best). Torch
    proposes, one forward pass of the reference confirms every token or repairs the first wrong one.
    """
    out = []
    while True:
        out += nano.greedy(ids + out, count - len(out), stop=())
        logits = reference.forward(ids + out)[len(ids) - 1 : -1]
        best = logits.argmax(1)
        wrong = np.nonzero(best != np.array(out))[0]
        if not len(wrong):
            top = np.sort(logits, 1)
            return out, top[:, -1] - top[:, -2]
        out = [*out[: wrong[0]], int(best[wrong[0]])]


def accepted_drafts(reference, ids, begin):
    """Accepted drafts of each speculative round over a sequence that is its own greedy continuation
    from `begin` on and that the reference has seen last."""
    accepted, position = [], begin
    size = reference.config["dspark_block_size"]
    while position + size + 1 < len(ids):
        drafted, _ = reference.draft(position, ids[position])
        count = 0
        while count < size and drafted[count] == ids[position + 1 + count]:
            count += 1
        accepted.append(count)
        position += count + 1
    return accepted


def agreement(options, tokenizer):
    torch_models = {mode: StoredNano(options.model, mode) for mode in ("reference", "fp32")}
    references = {mode: Reference(options.model, mode) for mode in ("reference", "fp32")}
    for category in ("bible", "wordnet", "tools", "recall_m", "story"):
        ids = []
        for text in held_out(options.corpus, category, 0, None):
            ids += tokenizer.encode(text)
        ids = ids[:300]
        row = dict(passage=category)
        for mode, reference in references.items():
            ours, theirs = torch_models[mode].logits(ids), reference.forward(ids)
            row[f"torch_{mode}_nll"] = nll(ours, ids).mean()
            row[f"numpy_{mode}_nll"] = nll(theirs, ids).mean()
        row["max_fp32_logit_difference"] = np.abs(ours.numpy() - theirs).max()
        print(json.dumps({k: v if isinstance(v, str) else float(v) for k, v in row.items()}))


def draft_prompts(folder):
    r = random.Random(3)
    beginnings = [
        "Once upon a time there was a little",
        "One day there was a brave dog",
        "Long ago, near the river, there lived",
    ]
    questions = ["Tell me a story about a bear.", "What is the capital of Italy?", "Define house."]
    cases = [corpus.tool_case(r) for _ in range(3)]
    return {
        "text": held_out(folder, "bible", 20, 24),
        "story": [corpus.BEGIN + text for text in beginnings],
        "chat": [corpus.prompt(question, effort=75) for question in questions],
        "tools": [corpus.prompt(case[0], **case[-1]) for case in cases],
    }


def command_reference(options):
    nano, reference = StoredNano(options.model), Reference(options.model)
    agreement(options, nano.tokenizer)
    for kind, prompts in draft_prompts(options.corpus).items():
        accepted = []
        for prompt in prompts:
            ids = nano.encode(prompt)
            if kind == "text":
                ids = ids[:40]
            continuation, _ = reference_greedy(reference, nano, ids, 48)
            if END_TOKEN in continuation:
                continuation = continuation[: continuation.index(END_TOKEN) + 1]
            accepted += accepted_drafts(reference, ids + continuation, len(ids))
        result = dict(prompts=kind, rounds=len(accepted), accepted_per_round=mean(accepted))
        print(json.dumps(result), flush=True)


def golden_prompts(nano):
    r = random.Random(11)
    filler = [sentence for _ in range(60) for sentence in corpus.sentences(corpus.story(r))]
    tools = [corpus.TOOLS["get_weather"], corpus.TOOLS["add"]]
    psalm = "Psalms 23\nThe LORD is my shepherd; I shall not want."
    turns = [("Hello", "x", "Hello! How can I help you?"), ("What is 12 + 7?", None, None)]
    return {
        "plain": corpus.BEGIN + psalm,
        "story": corpus.BEGIN + "Once upon a time there was a little fox named Anna.",
        "chat": corpus.prompt("What is the capital of France?"),
        "think": corpus.render(turns, effort=75),
        "tool": corpus.prompt("What is the weather in Paris?", tools=tools, effort=75),
        "recall1000": recall_case(r, nano, filler, 1000)[0],
    }


def command_golden(options):
    nano = StoredNano(options.model)
    references = {mode: Reference(options.model, mode) for mode in ("fp32", "reference")}
    out = {}
    for name, text in golden_prompts(nano).items():
        ids = nano.encode(text)
        out[f"{name}.token_ids"] = np.array(ids, np.int64)
        out[f"{name}.text_utf8"] = np.frombuffer(text.encode(), np.uint8)
        for mode, reference in references.items():
            logits = reference.forward(ids)
            out[f"{name}.{mode}.last_logits"] = logits[-1].astype(np.float32)
            out[f"{name}.{mode}.nll"] = nll(logits, ids).astype(np.float32)
        continuation, margins = reference_greedy(references["reference"], nano, ids, 32)
        out[f"{name}.reference.greedy32"] = np.array(continuation, np.int64)
        out[f"{name}.reference.greedy32_margin"] = margins.astype(np.float32)
        accepted = accepted_drafts(references["reference"], ids + continuation, len(ids))
        out[f"{name}.reference.accepted_drafts"] = np.array(accepted, np.int64)
        for mode, reference in references.items():
            drafted, confidences = reference.draft(len(ids), continuation[0])
            out[f"{name}.{mode}.draft_tokens"] = np.array(drafted, np.int64)
            out[f"{name}.{mode}.draft_confidence"] = np.array(confidences, np.float32)
        print(name, len(ids), accepted, repr(nano.tokenizer.decode(continuation)), flush=True)
    producer = "independent numpy reference; greedy32 ignores the end token"
    safetensors.write(options.out, out, {"producer": producer})


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    for name, run in (("quality", command_quality), ("reference", command_reference)):
        command = commands.add_parser(name)
        command.add_argument("model", type=Path, help="checkpoint folder")
        command.add_argument("corpus", type=Path, help="folder written by corpus.py")
        command.set_defaults(run=run)
    golden = commands.add_parser("golden")
    golden.add_argument("model", type=Path, help="checkpoint folder")
    golden.add_argument("out", type=Path, help="a .safetensors file")
    golden.set_defaults(run=command_golden)
    options = parser.parse_args()
    torch.set_num_threads(1)
    options.run(options)


if __name__ == "__main__":
    main()
