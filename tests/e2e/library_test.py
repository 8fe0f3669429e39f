#!/usr/bin/python3
"""The library from outside: README's programs, what it exports, and the Python package.

usage: library_test.py BINARY [unittest arguments]

libmillrace.so lies beside BINARY. Answers are compared with those of `BINARY generate`.
"""
import asyncio
import ctypes
import json
import multiprocessing
import os
import pty
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import unittest
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
NANO = ROOT / "models/nano"
TIMEOUT = 120  # seconds; generous, for machines that do other work

BINARY = BUILD = LIBRARY = None  # set by the command line

sys.path.insert(0, str(ROOT / "python"))

import millrace  # noqa: E402
from millrace import LLM, SamplingParams  # noqa: E402

CAPITAL = [{"role": "user", "content": "What is the capital of France?"}]
WEATHER = [{"role": "user", "content": "What is the weather in Paris?"}]
TOOLS = [
    {
        "type": "function",
        "function": {
            "name": "get_weather",
            "description": "Weather of a city",
            "parameters": {
                "type": "object",
                "properties": {"city": {"type": "string"}},
                "required": ["city"],
            },
        },
    }
]
PROMPTS = ["Once upon a time", "In the beginning", "The river"]


def run(*command, **keywords):
    result = subprocess.run(
        [str(word) for word in command], capture_output=True, text=True, timeout=TIMEOUT, **keywords
    )
    if result.returncode != 0:
        raise AssertionError(f"{command}: exit {result.returncode}: {result.stderr}")
    return result


def python(code, *arguments):
    """Runs a program with the package; it must succeed."""
    env = dict(os.environ, PYTHONPATH=str(ROOT / "python"))
    return run(sys.executable, "-c", code, *arguments, env=env, cwd=ROOT)


def generate(*arguments):
    return run(BINARY, "generate", "--threads", 1, *arguments).stdout


def answer(*arguments):
    return json.loads(generate("--json", "--temp", 0, *arguments))


def greedy(max_tokens=12, **others):
    return SamplingParams(temperature=0, max_tokens=max_tokens, **others)


class Readme(unittest.TestCase):
    """The text is what is compiled: its programs and its commands."""

    def setUp(self):
        self.text = (ROOT / "README.md").read_text()
        self.folder = Path(tempfile.mkdtemp())
        self.addCleanup(shutil.rmtree, self.folder)

    def block(self, language):
        [block] = re.findall(rf"^```{language}\n(.*?)^```$", self.text, re.M | re.S)
        return block

    def compiled(self, language, suffix):
        source = self.folder / ("example" + suffix)
        source.write_text(self.block(language))
        [command] = re.findall(rf"^\S+ -std=\S+ example\{suffix} .*$", self.text, re.M)
        words = command.replace("build", BUILD).split()
        words[words.index("example" + suffix)] = str(source)
        words[-1] = str(self.folder / "example")
        run(*words, "-Wall", "-Wextra", "-Wpedantic", "-Werror", cwd=ROOT)
        return run(words[-1], cwd=ROOT)

    def chat_file(self):
        path = self.folder / "chat.json"
        path.write_text(json.dumps({"messages": CAPITAL}))
        return path

    def test_the_c_program_says_what_generate_says(self):
        result = self.compiled("c", ".c")
        self.assertEqual(result.stdout, generate("--temp", 0, "-n", 50, "Once upon a time"))
        self.assertEqual(result.stderr, "")

    def test_the_cpp_program_says_what_generate_says(self):
        result = self.compiled("cpp", ".cc")
        expected = answer("--chat", self.chat_file())
        self.assertEqual(result.stdout, expected["content"])
        self.assertEqual(result.stderr, expected["reasoning_content"])

    def test_the_python_program_says_what_generate_says(self):
        result = python(self.block("python"))
        texts = [generate("--temp", 0, "-n", 50, prompt) for prompt in PROMPTS[:2]]
        expected = "".join(prompt + text for prompt, text in zip(PROMPTS, texts))
        reply = answer("--chat", self.chat_file(), "-n", 50)
        self.assertEqual(result.stdout, expected + reply["content"] + "\n")
        self.assertEqual(result.stderr, "")

    def test_the_header_serves_every_standard(self):
        source = self.folder / "empty.c"
        source.write_text("#include <millrace.h>\nint main(void) { return 0; }\n")
        flags = ["-Iinclude", "-Wall", "-Wextra", "-Wpedantic", "-Werror", "-fsyntax-only"]
        for command in (["cc", "-std=c99"], ["cc", "-std=c17"], ["c++", "-std=c++11", "-x", "c++"],
                        ["c++", "-std=c++20", "-x", "c++"]):
            run(*command, *flags, source, cwd=ROOT)


class Library(unittest.TestCase):
    def test_it_exports_what_the_header_declares_and_nothing_else(self):
        header = (ROOT / "include/millrace.h").read_text()
        declared = set(re.findall(r"^MILLRACE_API [^(;]*?\*?(millrace_\w+)\(", header, re.M))
        symbols = run("nm", "-D", "--defined-only", LIBRARY).stdout.splitlines()
        self.assertEqual({line.split()[-1] for line in symbols}, declared)
        self.assertGreater(len(declared), 20)

    def test_its_name_carries_its_version(self):
        dynamic = run("objdump", "-p", LIBRARY).stdout
        self.assertRegex(dynamic, r"SONAME +libmillrace\.so\.0\n")

    def test_loading_starts_no_thread_and_prints_nothing(self):
        result = python(
            "import ctypes, os, sys\n"
            "ctypes.CDLL(sys.argv[1])\n"
            "print(len(os.listdir('/proc/self/task')))",
            LIBRARY,
        )
        self.assertEqual((result.stdout, result.stderr), ("1\n", ""))

    def test_the_packages_structs_are_the_headers(self):
        names = ["engine_options", "engine_info", "sampling_params", "request_options",
                 "request_info", "event"]
        lines = []
        for name in names:
            struct = getattr(millrace._library, "".join(word.title() for word in name.split("_")))
            size = ctypes.sizeof(struct)
            lines.append(f"_Static_assert(sizeof(millrace_{name}) == {size}, \"size\");")
            lines += [
                f"_Static_assert(offsetof(millrace_{name}, {field[0]}) == "
                f"{getattr(struct, field[0]).offset}, \"{field[0]}\");"
                for field in struct._fields_
            ]
        with tempfile.TemporaryDirectory() as folder:
            source = Path(folder) / "structs.c"
            source.write_text("#include <millrace.h>\n" + "\n".join(lines) + "\n")
            run("cc", "-std=c11", "-I", ROOT / "include", "-fsyntax-only", source)

    def test_a_missing_library_is_named(self):
        code = (
            "from millrace import SamplingParams\n"
            "try: SamplingParams()\n"
            "except RuntimeError as error: print(error)"
        )
        env = dict(os.environ, PYTHONPATH=str(ROOT / "python"), MILLRACE_LIBRARY="/nowhere.so")
        result = run(sys.executable, "-c", code, env=env)
        self.assertIn("/nowhere.so", result.stdout)
        self.assertIn("MILLRACE_LIBRARY", result.stdout)


class Package(unittest.TestCase):
    maxDiff = None

    @classmethod
    def setUpClass(cls):
        cls.llm = LLM(model=NANO, num_threads=1)

    @classmethod
    def tearDownClass(cls):
        cls.llm.close()


class Generate(Package):
    def test_a_list_of_prompts_gives_the_programs_answers_in_order(self):
        outputs = self.llm.generate(PROMPTS, greedy())
        self.assertEqual([output.prompt for output in outputs], PROMPTS)
        for prompt, output in zip(PROMPTS, outputs):
            expected = answer("-n", 12, prompt)
            [choice] = output.outputs
            self.assertEqual(choice.token_ids, expected["token_ids"])
            self.assertEqual(choice.text, expected["text"])
            self.assertEqual(choice.finish_reason, expected["finish_reason"])
            self.assertTrue(output.finished)

    def test_prompts_come_in_every_form(self):
        [text] = self.llm.generate("Once upon a time", greedy())
        forms = [
            {"prompt": "Once upon a time"},
            {"prompt_token_ids": text.prompt_token_ids},
            [{"prompt_token_ids": text.prompt_token_ids}],
            ("Once upon a time",),
        ]
        for form in forms:
            [output] = self.llm.generate(form, greedy())
            self.assertEqual(output.outputs[0].token_ids, text.outputs[0].token_ids, form)
            self.assertEqual(output.prompt_token_ids, text.prompt_token_ids, form)
        self.assertEqual(self.llm.generate([]), [])

    def test_every_prompt_may_have_its_own_parameters(self):
        outputs = self.llm.generate(PROMPTS, [greedy(n) for n in (3, 5, 7)])
        self.assertEqual([len(output.outputs[0].token_ids) for output in outputs], [3, 5, 7])

    def test_without_parameters_the_models_recommendation_counts(self):
        recommended = json.loads((NANO / "generation_config.json").read_text())
        defaults = self.llm.get_default_sampling_params()
        self.assertEqual(defaults.top_p, recommended["top_p"])
        self.assertEqual(defaults.max_tokens, 16)
        [output] = self.llm.generate("Once upon a time")
        self.assertLessEqual(len(output.outputs[0].token_ids), 16)

    def test_several_choices_differ_and_the_seed_repeats_them(self):
        params = SamplingParams(n=3, temperature=1.5, max_tokens=12)
        [output] = self.llm.generate("Once upon a time", params)
        texts = [choice.text for choice in output.outputs]
        self.assertEqual(len(set(texts)), 3)
        self.assertEqual([choice.index for choice in output.outputs], [0, 1, 2])
        params.seed = output.seed
        [again] = self.llm.generate("Once upon a time", params)
        self.assertEqual([choice.text for choice in again.outputs], texts)

    def test_logprobs_are_those_of_the_program(self):
        params = greedy(6, logprobs=2, prompt_logprobs=1)
        [output] = self.llm.generate("Once upon a time", params)
        expected = answer("-n", 6, "--logprobs", 2, "--prompt-logprobs", 1, "Once upon a time")
        choice = output.outputs[0]
        self.assertEqual(len(choice.logprobs), 6)
        for found, token in zip(choice.logprobs, expected["logprobs"]):
            for one in token["top"]:
                entry = found[one["token_id"]]
                self.assertAlmostEqual(entry.logprob, one["logprob"], places=6)
                self.assertEqual((entry.rank, entry.decoded_token), (one["rank"], one["token"]))
        total = sum(token["logprob"] for token in expected["logprobs"])
        self.assertAlmostEqual(choice.cumulative_logprob, total, places=5)
        self.assertIsNone(output.prompt_logprobs[0])
        self.assertEqual(len(output.prompt_logprobs), len(output.prompt_token_ids))
        for token_id, found, token in list(
            zip(output.prompt_token_ids, output.prompt_logprobs, expected["prompt_logprobs"])
        )[1:]:
            self.assertAlmostEqual(found[token_id].logprob, token["logprob"], places=6)

    def test_stops_are_reported(self):
        [plain] = self.llm.generate("Once upon a time", greedy())
        ids, text = plain.outputs[0].token_ids, plain.outputs[0].text
        [output] = self.llm.generate("Once upon a time", greedy(stop=[text[5:9]]))
        self.assertEqual(output.outputs[0].stop_reason, text[5:9])
        self.assertEqual(output.outputs[0].text, text[:5])
        [output] = self.llm.generate("Once upon a time", greedy(stop_token_ids=[ids[2]]))
        self.assertEqual(output.outputs[0].stop_reason, ids[2])
        self.assertEqual(output.outputs[0].finish_reason, "stop")

    def test_biases_bans_and_permissions_count(self):
        [plain] = self.llm.generate("Once upon a time", greedy())
        ids = plain.outputs[0].token_ids
        banned = self.llm.get_tokenizer().decode(ids[:1]).strip()
        for others in ({"logit_bias": {ids[0]: -100}}, {"bad_words": [banned]}):
            [output] = self.llm.generate("Once upon a time", greedy(**others))
            self.assertNotEqual(output.outputs[0].token_ids[0], ids[0], others)
        [output] = self.llm.generate("Once upon a time", greedy(allowed_token_ids=ids[3:4]))
        self.assertEqual(output.outputs[0].token_ids, [ids[3]] * 12)

    def test_more_prompts_than_the_engine_takes_are_answered_all_the_same(self):
        with LLM(NANO, num_threads=1, max_num_seqs=2, max_waiting=2, kv_bytes=64 << 20) as llm:
            for n in (1, 2):
                outputs = llm.generate(PROMPTS * 5, greedy(4, n=n), priority=[1, 0, -1] * 5)
                texts = [output.outputs[-1].text for output in outputs]
                self.assertEqual(texts[:3] * 5, texts)
                self.assertTrue(all(output.finished for output in outputs))

    def test_long_answers_side_by_side_do_not_wait_for_their_reader(self):
        outputs = self.llm.generate(PROMPTS, greedy(400, ignore_eos=True))
        self.assertEqual([len(output.outputs[0].token_ids) for output in outputs], [400] * 3)

    def test_control_tokens_are_for_trusted_text(self):
        text = "<｜User｜>Hi"
        [plain] = self.llm.generate(text, greedy(1))
        [trusted] = self.llm.generate(text, greedy(1), trusted=True)
        self.assertLess(len(trusted.prompt_token_ids), len(plain.prompt_token_ids))


class Chat(Package):
    def test_one_conversation_and_several(self):
        params = greedy(None)
        [one] = self.llm.chat(CAPITAL, params)
        choice = one.outputs[0]
        self.assertEqual(choice.content, "The capital of France is Paris.")
        self.assertEqual(choice.text, choice.reasoning + "</think>" + choice.content)
        self.assertEqual(choice.finish_reason, "stop")
        self.assertIn("What is the capital of France?", one.prompt)
        both = self.llm.chat([CAPITAL, CAPITAL], params)
        self.assertEqual([output.outputs[0].text for output in both], [choice.text] * 2)

    def test_thinking_can_be_off(self):
        [output] = self.llm.chat(CAPITAL, greedy(None), chat_template_kwargs={"thinking": False})
        self.assertEqual(output.outputs[0].reasoning, "")
        self.assertEqual(output.outputs[0].content, "The capital of France is Paris.")

    def test_tools_are_called(self):
        [output] = self.llm.chat(WEATHER, greedy(None), tools=TOOLS)
        [call] = output.outputs[0].tool_calls
        self.assertEqual(call.name, "get_weather")
        self.assertIn("city", json.loads(call.arguments))
        self.assertEqual(output.outputs[0].finish_reason, "tool_calls")

    def test_a_reply_can_be_continued(self):
        messages = CAPITAL + [{"role": "assistant", "content": "The capital of"}]
        [output] = self.llm.chat(messages, greedy(None), continue_final_message=True)
        self.assertTrue(output.prompt.endswith("The capital of"))

    def test_mistakes_are_named(self):
        cases = [
            ("kwargs: found 'bogus'", CAPITAL, {"chat_template_kwargs": {"bogus": 1}}),
            ("messages", [{"role": "nobody", "content": "x"}], {}),
            ("tools", CAPITAL, {"tools": [{"type": "hammer"}]}),
            ("messages", [{"role": "user", "content": object()}], {}),
        ]
        for message, messages, keywords in cases:
            with self.assertRaisesRegex(ValueError, message):
                self.llm.chat(messages, greedy(), **keywords)


class Stream(Package):
    def test_pieces_add_up_to_the_answer(self):
        [whole] = self.llm.generate("Once upon a time", greedy())
        pieces = list(self.llm.stream("Once upon a time", greedy(logprobs=0)))
        self.assertEqual("".join(piece.text for piece in pieces), whole.outputs[0].text)
        self.assertEqual([piece.token_id for piece in pieces], whole.outputs[0].token_ids)
        self.assertEqual([piece.finish_reason for piece in pieces], [None] * 11 + ["length"])
        self.assertTrue(all(piece.token_id in piece.logprobs for piece in pieces))

    def test_a_chat_comes_parsed(self):
        pieces = list(self.llm.stream_chat(WEATHER, greedy(None), tools=TOOLS))
        calls = [call for piece in pieces for call in piece.tool_calls]
        self.assertEqual(calls[0].name, "get_weather")
        self.assertIn("city", json.loads("".join(call.arguments for call in calls)))

    def test_a_stream_that_is_left_ends_its_request(self):
        for _ in range(3):
            stream = self.llm.stream("Once upon a time", greedy(4000, ignore_eos=True))
            next(stream)
            stream.close()
        self.llm.stream("Once upon a time", greedy(4000, ignore_eos=True))  # never begun
        self.assertEqual(len(self.llm.generate("The river", greedy(3))[0].outputs[0].token_ids), 3)

    def test_a_mistake_is_told_at_once(self):
        with self.assertRaisesRegex(ValueError, "temperature: found 3"):
            self.llm.stream("Once", SamplingParams(temperature=3))


class TokenizerTest(Package):
    def test_text_comes_back(self):
        tokenizer = self.llm.get_tokenizer()
        text = "Genesis, café \0 水"
        ids = tokenizer.encode(text)
        self.assertEqual(ids[0], tokenizer.bos_token_id)
        self.assertEqual(tokenizer.decode(ids, skip_special_tokens=True), text)
        bare = tokenizer.encode(text, add_special_tokens=False)
        self.assertEqual(bare, ids[1:])
        self.assertEqual(b"".join(map(tokenizer.token_bytes, bare)), text.encode())
        self.assertEqual(len(tokenizer), self.llm.vocab_size)
        self.assertEqual(tokenizer.decode([]), "")

    def test_a_template_is_the_prompt_of_a_chat(self):
        tokenizer = self.llm.get_tokenizer()
        [output] = self.llm.chat(CAPITAL, greedy(1))
        self.assertEqual(tokenizer.apply_chat_template(CAPITAL), output.prompt_token_ids)
        self.assertEqual(tokenizer.apply_chat_template(CAPITAL, tokenize=False), output.prompt)

    def test_ids_beyond_the_vocabulary_are_refused(self):
        for ids in ([-1], [self.llm.vocab_size], [2**40], ["x"], [True]):
            with self.assertRaisesRegex(ValueError, "ids: found"):
                self.llm.get_tokenizer().decode(ids)


class Arguments(Package):
    def test_unknown_names_are_refused(self):
        for call in (
            lambda: SamplingParams(beams=2),
            lambda: LLM(model=NANO, tensor_parallel_size=2),
            lambda: self.llm.generate("x", lora_request=1),
        ):
            with self.assertRaisesRegex(TypeError, "beams|tensor_parallel_size|lora_request"):
                call()

    def test_parameters_of_the_wrong_type_are_refused_by_name(self):
        for name, value in {
            "n": 1.5, "temperature": "hot", "top_k": 2.5, "seed": -1, "stop": 7,
            "stop_token_ids": 7, "bad_words": [1], "ignore_eos": 1, "max_tokens": 2**63,
            "logprobs": True, "logit_bias": [1], "allowed_token_ids": [2**31], "min_tokens": None,
            "top_p": None,
        }.items():
            with self.assertRaisesRegex(ValueError, f"^{name}: found"):
                SamplingParams(**{name: value})

    def test_values_without_sense_are_refused_by_name(self):
        for name, value in {
            "n": 0, "temperature": -1.0, "top_p": 0.0, "min_p": 2.0, "repetition_penalty": 0.0,
            "presence_penalty": 3.0, "frequency_penalty": -3.0, "min_tokens": -1, "logprobs": -2,
            "prompt_logprobs": -2, "max_tokens": 10**9, "top_k": -2,
        }.items():
            message = "maximum context" if name == "max_tokens" else name
            with self.assertRaisesRegex(ValueError, message):
                self.llm.generate("Once", SamplingParams(**{name: value}))

    def test_prompts_without_sense_are_refused(self):
        for prompts, message in [
            (7, "prompts: found 7"),
            ([7], "prompt: found 7"),
            ([1, 2], "prompt: found 1"),
            ({"text": "x"}, "prompt: found the keys"),
            ({"prompt_token_ids": []}, "prompt: found no tokens"),
            ({"prompt_token_ids": "abc"}, "prompt_token_ids: found 'abc'"),
            (["Once", {"prompt_token_ids": [10**6]}], "prompt 1: prompt: found token id 1000000"),
        ]:
            with self.assertRaisesRegex(ValueError, message):
                self.llm.generate(prompts, greedy())
        with self.assertRaisesRegex(ValueError, "found 2, expected one for each of 3"):
            self.llm.generate(PROMPTS, [greedy(), greedy()])
        with self.assertRaisesRegex(ValueError, "sampling_params: found 'x'"):
            self.llm.generate(PROMPTS, "x")

    def test_models_and_options_without_sense_are_refused(self):
        with self.assertRaisesRegex(RuntimeError, "/nowhere"):
            LLM(model="/nowhere")
        for keywords in ({"numerics": "exact"}, {"isa": "PDP11"}, {"max_num_seqs": 0},
                         {"num_threads": -1}, {"max_step_ms": "x"}):
            with self.assertRaisesRegex(ValueError, "found"):
                LLM(NANO, **keywords)

    def test_every_option_is_taken(self):
        options = dict(
            numerics="fp32", num_threads=2, isa="ref", prefill_chunk=64, max_model_len=512,
            max_num_seqs=4, max_num_batched_tokens=128, max_step_ms=100, max_waiting=8,
            kv_bytes=64 << 20, expert_cache_bytes=1 << 20,
        )
        with LLM(NANO, **options) as llm:
            self.assertRegex(llm.numerics_id, "^fp32-")
            self.assertEqual(llm.max_model_len, 512)
            self.assertEqual(len(llm.generate("Once", greedy(2))[0].outputs[0].token_ids), 2)

    def test_a_closed_llm_says_so(self):
        llm = LLM(NANO, num_threads=1)
        stream = llm.stream("Once upon a time", greedy(3))
        llm.close()
        llm.close()
        with self.assertRaisesRegex(RuntimeError, "found closed"):
            llm.generate("x")
        self.assertEqual(len(list(stream)), 3)  # what was asked is answered


def child_greets(queue):
    with LLM(NANO, num_threads=1) as llm:
        queue.put(llm.generate("Once upon a time", greedy())[0].outputs[0].text)


class ProcessesAndThreads(Package):
    def test_a_forked_child_is_refused_and_ends(self):
        stream = self.llm.stream("Once upon a time", greedy())
        read_end, write_end = os.pipe()
        child = os.fork()
        if child == 0:
            signal.alarm(TIMEOUT)
            said = "nothing"
            try:
                self.llm.generate("x")
            except RuntimeError as error:
                said = str(error)
            self.llm.close()
            stream.close()
            os.write(write_end, said.encode())
            os._exit(0)
        os.close(write_end)
        self.assertEqual(os.waitpid(child, 0)[1], 0)
        said = os.read(read_end, 1000).decode()
        self.assertIn("after fork() a child needs an engine of its own", said)
        os.close(read_end)
        self.assertEqual(len(list(stream)), 12)

    def test_workers_make_their_own_by_fork_and_by_spawn(self):
        expected = self.llm.generate("Once upon a time", greedy())[0].outputs[0].text
        for method in ("fork", "spawn"):
            context = multiprocessing.get_context(method)
            queue = context.Queue()
            process = context.Process(target=child_greets, args=(queue,))
            process.start()
            self.assertEqual(queue.get(timeout=TIMEOUT), expected, method)
            process.join(TIMEOUT)
            self.assertEqual(process.exitcode, 0, method)

    def test_many_threads_ask_at_once(self):
        expected = [output.outputs[0].text for output in self.llm.generate(PROMPTS, greedy())]
        found = [None] * 6

        def ask(i):
            found[i] = self.llm.generate(PROMPTS[i % 3], greedy())[0].outputs[0].text

        threads = [threading.Thread(target=ask, args=(i,)) for i in range(6)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        self.assertEqual(found, expected * 2)

    def test_asyncio_runs_it_in_an_executor(self):
        async def ask():
            loop = asyncio.get_running_loop()
            calls = [
                loop.run_in_executor(None, self.llm.generate, prompt, greedy())
                for prompt in PROMPTS
            ]
            return await asyncio.gather(*calls)

        texts = [outputs[0].outputs[0].text for outputs in asyncio.run(ask())]
        expected = [output.outputs[0].text for output in self.llm.generate(PROMPTS, greedy())]
        self.assertEqual(texts, expected)

    def test_ctrl_c_ends_the_call_and_leaves_the_llm_usable(self):
        self.addCleanup(signal.signal, signal.SIGALRM, signal.getsignal(signal.SIGALRM))
        signal.signal(signal.SIGALRM, signal.default_int_handler)  # the same from a timer
        signal.setitimer(signal.ITIMER_REAL, 0.2)
        with self.assertRaises(KeyboardInterrupt):
            self.llm.generate(PROMPTS * 20, greedy(16000, ignore_eos=True))
        self.assertEqual(len(self.llm.generate("The river", greedy(3))[0].outputs[0].token_ids), 3)

    def test_a_program_may_end_without_closing_anything(self):
        result = python(
            "from millrace import LLM, SamplingParams\n"
            "llm = LLM('models/nano', num_threads=1)\n"
            "s = llm.stream('Once', SamplingParams(max_tokens=4000, ignore_eos=True)); next(s)\n"
            "print('end')"
        )
        self.assertEqual((result.stdout, result.stderr), ("end\n", ""))

    def test_progress_is_shown_on_a_terminal_only(self):
        code = (
            "from millrace import LLM, SamplingParams\n"
            "llm = LLM('models/nano', num_threads=1)\n"
            "llm.generate(['Once'] * 3, SamplingParams(max_tokens=3))\n"
            "llm.generate('Once', SamplingParams(max_tokens=3), use_tqdm=False)\n"
        )
        self.assertEqual(python(code).stderr, "")
        ours, theirs = pty.openpty()
        env = dict(os.environ, PYTHONPATH=str(ROOT / "python"))
        command = [sys.executable, "-c", code]
        subprocess.run(command, stderr=theirs, env=env, cwd=ROOT, timeout=TIMEOUT, check=True)
        os.close(theirs)
        shown = os.read(ours, 100000).decode()
        os.close(ours)
        self.assertRegex(shown, r"\[#{30}\] 3/3 prompts, \d+ tokens/s\r?\n$")


if __name__ == "__main__":
    if len(sys.argv) < 2 or sys.argv[1].startswith("-"):
        raise SystemExit(__doc__)
    BINARY = os.path.abspath(sys.argv.pop(1))
    BUILD = os.path.dirname(BINARY)
    LIBRARY = os.environ["MILLRACE_LIBRARY"] = os.path.join(BUILD, "libmillrace.so")
    unittest.main()
