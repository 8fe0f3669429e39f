#!/usr/bin/python3
"""Writes nano's corpus: one JSON-lines file per category and part, with {"text": ...}.

Natural text is the King James Bible (Debian packages bible-kjv, bible-kjv-text) and WordNet's
glosses (wordnet-base). The rest is generated: stories, and exercises in the V4.1 chat, tool and
JSON formats. Special tokens are spelled literally. The same scale gives the same files.
"""
import argparse
import json
import random
import re
import subprocess
from collections import Counter
from pathlib import Path

BEGIN, END = "<｜begin▁of▁sentence｜>", "<｜end▁of▁sentence｜>"
SYSTEM, USER, ASSISTANT = "<｜System｜>", "<｜User｜>", "<｜Assistant｜>"
DSML = "｜DSML｜"
TOOLS_TEXT = f"""## Tools

You have access to a set of tools to help answer the user's question. You can invoke tools by \
writing a "<{DSML} calls>" block like the following:

<{DSML} calls>
<{DSML} invoke name="$TOOL_NAME">
<{DSML} parameter name="$PARAMETER_NAME" string="true|false">$PARAMETER_VALUE</{DSML} parameter>
...
</{DSML} invoke>
<{DSML} invoke name="$TOOL_NAME2">
...
</{DSML} invoke>
</{DSML} calls>

String parameters should be specified as is and set `string="true"`. For all other types (numbers, \
booleans, arrays, objects), pass the value in JSON format and set `string="false"`.

If thinking_mode is enabled (triggered by <think>), you MUST output your complete reasoning inside \
<think>...</think> BEFORE any tool calls or final response.

Otherwise, output directly after </think> with tool calls or final response.

### Available Tool Schemas

{{schemas}}

You MUST strictly follow the above defined tool name and parameter schemas to invoke tool calls.
"""
FORMAT_TEXT = "## Response Format:\n\nYou MUST strictly adhere to the following schema to reply:\n"
EFFORT_TEXT = (
    "Reasoning Effort: {} (range 1-100, the higher the value, the more thorough the reasoning)\n\n"
)
HELPFUL = "You are a helpful assistant."

# ---- Words

CITIES = """Paris London Rome Berlin Madrid Cairo Tokyo Delhi Boston Lima Oslo Athens Vienna Dublin
    Prague Lisbon Moscow Seoul Sydney Chicago Havana Nairobi Warsaw Helsinki Beijing Toronto Geneva
    Milan Denver Dallas""".split()
NAMES = """Anna Tom Lucy Ben Mia Sam Rose Jack Emma Max Lily Leo Sara Tim Nora Fred Jane Paul Ruth
    Mark Clara Peter Alice Henry Mary John Kate David Ella Adam""".split()
COLORS = """red blue green yellow black white brown gray pink orange purple silver golden""".split()
THINGS = """door box key house garden boat horse bird tree table lamp book chair bridge tower cup
    ring coat hat wheel bell stone car ship clock shop room gate wall bag""".split()
ANIMALS = """dog cat fox bear rabbit mouse bird frog horse cow sheep goat duck lion wolf fish turtle
    owl pig hen""".split()
PLACES = """forest garden river village hill lake town field house farm market cave beach
    mountain""".split()
KEYS = """alpha beta gamma delta price limit color size mode speed level owner host port user path
    name title count width""".split()
JOBS = "doctor teacher farmer baker driver writer nurse sailor painter cook".split()
FOODS = "bread apple cake soup cheese rice fish egg pear honey".split()
ADJECTIVES = "little big old young happy sad kind brave quiet clever hungry tired".split()
WEATHER = "sunny rainy cloudy windy snowy foggy".split()


def word_pairs(text):
    return [tuple(pair.split(":")) for pair in text.split()]


CAPITALS = word_pairs(
    """France:Paris England:London Italy:Rome Germany:Berlin Spain:Madrid Egypt:Cairo Japan:Tokyo
    India:Delhi Peru:Lima Norway:Oslo Greece:Athens Austria:Vienna Ireland:Dublin Portugal:Lisbon
    Russia:Moscow Korea:Seoul Cuba:Havana Kenya:Nairobi Poland:Warsaw Finland:Helsinki
    China:Beijing Canada:Ottawa Brazil:Brasilia Sweden:Stockholm Denmark:Copenhagen Belgium:Brussels
    Hungary:Budapest Turkey:Ankara Iran:Tehran Iraq:Baghdad Syria:Damascus Israel:Jerusalem
    Jordan:Amman Australia:Canberra Chile:Santiago Bolivia:Sucre Ecuador:Quito Colombia:Bogota
    Venezuela:Caracas Uruguay:Montevideo Mexico:Mexico Ghana:Accra Senegal:Dakar Libya:Tripoli
    Tunisia:Tunis Morocco:Rabat Ethiopia:Addis Uganda:Kampala Nepal:Kathmandu Thailand:Bangkok
    Vietnam:Hanoi Romania:Bucharest Bulgaria:Sofia Serbia:Belgrade Ukraine:Kiev Scotland:Edinburgh
    Wales:Cardiff Iceland:Reykjavik"""
)
OPPOSITES = word_pairs(
    """hot:cold big:small good:bad up:down left:right day:night old:young fast:slow light:dark
    happy:sad wet:dry rich:poor hard:soft open:closed early:late long:short high:low full:empty
    strong:weak thick:thin wide:narrow near:far true:false first:last new:ancient black:white
    love:hate war:peace win:lose begin:end give:take come:go buy:sell in:out over:under before:after
    north:south east:west friend:enemy king:slave heaven:hell life:death clean:dirty loud:quiet
    heavy:easy brave:afraid sweet:bitter sharp:dull wise:foolish many:few more:less always:never
    yes:no man:woman boy:girl father:mother brother:sister son:daughter husband:wife"""
)
SOUNDS = word_pairs(
    """dog:barks cat:meows cow:moos sheep:bleats duck:quacks lion:roars wolf:howls owl:hoots
    hen:clucks bird:sings frog:croaks pig:grunts horse:neighs mouse:squeaks bee:buzzes snake:hisses
    crow:caws donkey:brays"""
)
COLOR_OF = word_pairs(
    """grass:green sky:blue snow:white blood:red coal:black gold:yellow milk:white sun:yellow
    sea:blue leaf:green lemon:yellow tomato:red night:black bone:white carrot:orange earth:brown
    rose:red salt:white crow:black silver:gray"""
)
YOUNG = word_pairs(
    """dog:puppy cat:kitten cow:calf sheep:lamb horse:foal hen:chick lion:cub bear:cub goat:kid
    duck:duckling pig:piglet frog:tadpole"""
)
PLURALS = word_pairs(
    """child:children man:men woman:women foot:feet tooth:teeth mouse:mice goose:geese ox:oxen
    leaf:leaves wolf:wolves knife:knives wife:wives city:cities fly:flies sheep:sheep fish:fish
    house:houses box:boxes bird:birds tree:trees"""
)
WEEKDAYS = "Monday Tuesday Wednesday Thursday Friday Saturday Sunday".split()
MONTHS = """January February March April May June July August September October November
    December""".split()
NUMBERS = """one two three four five six seven eight nine ten eleven twelve thirteen fourteen
    fifteen sixteen seventeen eighteen nineteen twenty""".split()


def known_facts():
    """[(sentence, question)]; the sentence is the answer."""
    facts = []
    for country, city in CAPITALS:
        question = f"What is the capital of {country}?"
        facts.append((f"The capital of {country} is {city}.", question))
    for pair in OPPOSITES:
        for a, b in (pair, pair[::-1]):
            facts.append((f"The opposite of {a} is {b}.", f"What is the opposite of {a}?"))
    for animal, sound in SOUNDS:
        facts.append((f"A {animal} {sound}.", f"What does a {animal} do?"))
    for thing, color in COLOR_OF:
        facts.append((f"The color of {thing} is {color}.", f"What is the color of {thing}?"))
    for animal, young in YOUNG:
        facts.append((f"A young {animal} is a {young}.", f"What is a young {animal}?"))
    for one, many in PLURALS:
        facts.append((f"The plural of {one} is {many}.", f"What is the plural of {one}?"))
    for what, names in (("day", WEEKDAYS), ("month", MONTHS), ("number", NUMBERS)):
        for a, b in zip(names, names[1:]):
            facts.append((f"The {what} after {a} is {b}.", f"What is the {what} after {a}?"))
            facts.append((f"The {what} before {b} is {a}.", f"What is the {what} before {b}?"))
    return facts


KNOWN_FACTS = known_facts()

# ---- The chat format


def render(turns, system=None, tools=None, schema=None, effort=None):
    """turns: [(user, reasoning, answer)]. effort None is chat mode; an answer None ends the text
    where the model has to go on."""
    out = BEGIN
    if (tools or schema) and system is None:
        system = ""
    if system is not None or effort is not None:
        out += SYSTEM
    if effort is not None:
        out += EFFORT_TEXT.format(effort)
    if system is not None:
        out += system
        if tools:
            schemas = "\n".join(json.dumps(t, ensure_ascii=False) for t in tools)
            out += "\n\n" + TOOLS_TEXT.replace("{schemas}", schemas)
        if schema:
            out += "\n\n" + FORMAT_TEXT + json.dumps(schema, ensure_ascii=False)
    for i, (user, reasoning, answer) in enumerate(turns):
        # Reasoning of earlier turns is dropped, unless tools are in play.
        keep = effort is not None and (tools or i == len(turns) - 1)
        out += USER + user + ASSISTANT + ("<think>" if keep else "</think>")
        if answer is None:
            break
        out += (reasoning + "</think>" if keep else "") + answer + END
    return out


def prompt(question, **options):
    return render([(question, None, None)], **options)


def tool_call(name, arguments):
    body = ""
    for key, value in arguments.items():
        is_string = isinstance(value, str)
        text = value if is_string else json.dumps(value)
        flag = "true" if is_string else "false"
        body += f'<{DSML} parameter name="{key}" string="{flag}">{text}</{DSML} parameter>\n'
    invoke = f'<{DSML} invoke name="{name}">\n{body}</{DSML} invoke>'
    return f"\n\n<{DSML} calls>\n{invoke}\n</{DSML} calls>"


def object_schema(types):
    properties = {name: {"type": type} for name, type in types.items()}
    return {"type": "object", "properties": properties, "required": list(types)}


def tool(name, description, **types):
    return {"name": name, "description": description, "parameters": object_schema(types)}


TOOLS = {
    "get_weather": tool("get_weather", "Get the weather of a city.", city="string"),
    "get_time": tool("get_time", "Get the local time of a city.", city="string"),
    "add": tool("add", "Add two numbers.", a="number", b="number"),
    "lookup": tool("lookup", "Look up the value of a key.", key="string"),
}

DESCRIPTIONS = {
    "get_weather": ["Weather of a city", "Tells the weather.", "The weather in a city."],
    "get_time": ["Time of a city", "Tells the time.", "The time in a city."],
    "add": ["Sum of two numbers", "Adds numbers.", "The sum of a and b."],
    "lookup": ["Value of a key", "Looks a key up.", "Get a value."],
}

# ---- Natural text


def bible():
    """Documents of about a thousand characters, each with its chapter line."""
    text = subprocess.run(
        ["bible", "-l", "1000", "gen1:1-rev22:21"],
        check=True,
        capture_output=True,
        text=True,
        stdin=subprocess.DEVNULL,
    ).stdout
    chapter, verses = "", []
    for line in text.splitlines():
        verse = re.match(r"^\s+\d+ (.*)$", line)
        if verse:
            verses.append((chapter, verse[1].strip()))
        elif re.match(r"^\S.* \d+$", line.strip()):
            chapter = line.strip()
    documents, chapter_of_document, size = [], None, 0
    for chapter, verse in verses:
        if chapter != chapter_of_document or size > 1100:
            documents.append([chapter])
            chapter_of_document, size = chapter, 0
        documents[-1].append(verse)
        size += len(verse)
    return [BEGIN + "\n".join(lines) + END for lines in documents]


def wordnet(folder):
    """[(word, part of speech, gloss)] of common words."""
    count = {}
    for line in open(folder / "cntlist.rev", errors="replace"):
        key, _, number = line.split()
        word = key.split("%")[0]
        count[word] = count.get(word, 0) + int(number)
    entries = []
    names = {"noun": "noun", "verb": "verb", "adj": "adjective", "adv": "adverb"}
    for file, part_of_speech in names.items():
        for line in open(folder / f"data.{file}", errors="replace"):
            if line.startswith("  ") or " | " not in line:
                continue
            fields = line.split()
            num_words = int(fields[3], 16)
            words = [re.sub(r"\(.*\)", "", fields[4 + 2 * i]) for i in range(num_words)]
            word = max(words, key=lambda w: count.get(w.lower(), 0))
            gloss = line.split(" | ", 1)[1].strip()
            plain = all(32 <= ord(c) < 127 for c in gloss)
            if plain and count.get(word.lower(), 0) >= 3 and len(gloss) < 260:
                entries.append((word.replace("_", " "), part_of_speech, gloss))
    return entries


# ---- Generated text. `r` is the random generator.


def story(r, hero=None):
    name, friend = r.sample(NAMES, 2)
    animal, other = r.sample(ANIMALS, 2)
    animal = hero or animal
    adj, adj2 = r.sample(ADJECTIVES, 2)
    place, place2 = r.sample(PLACES, 2)
    color, thing, food = r.choice(COLORS), r.choice(THINGS), r.choice(FOODS)
    he, his, _ = r.choice([("he", "his", "him"), ("she", "her", "her")])
    hero = r.choice(
        [
            f"a {adj} {animal} named {name}",
            f"a {animal} named {name}",
            f"a {adj} {animal} called {name}",
        ]
    )
    hero = hero.replace("a old", "an old").replace("a owl", "an owl")
    beginning = [
        r.choice(
            [
                f"Once upon a time there was {hero}.",
                f"One day there was {hero}.",
                f"Long ago, near the {place}, there lived {hero}.",
                f"There was once {hero} who lived in the {place}.",
            ]
        ),
        r.choice(
            [
                f"{name} lived in a {color} house near the {place}.",
                f"{name} liked to walk in the {place}.",
                f"Every day {name} went to the {place} to play.",
                f"{name} loved {food} and ate it every day.",
                f"{name} had a friend named {friend}.",
            ]
        ),
        r.choice(
            [
                f"One morning {he} found a {color} {thing} by the {place2}.",
                f"One day {he} lost {his} {color} {thing}.",
                f"One evening {he} saw a {adj2} {other} near the {place2}.",
                f"Then {friend} the {other} came to the {place}.",
            ]
        ),
    ]
    middle = [
        f"{he.capitalize()} was very {adj2}.",
        f'"What is this?" said {name}.',
        f'"Please help me," said {friend} the {other}.',
        f'"I am so hungry," said {friend}.',
        f"So they went to the {place2} together.",
        f"They looked for the {thing} all day long.",
        f"{name} did not know what to do.",
        f'"Do not be afraid," said {friend}. "I will help you."',
        f"{name} gave {friend} some {food}.",
        f"It began to rain, and they ran to the {place}.",
        f"The {thing} was under a big tree.",
        f"They sat by the {place2} and ate {food}.",
        f'"Where is my {thing}?" asked {name}.',
        f"{name} looked in the {place}, but the {thing} was not there.",
        f"The {other} was {adj2} and wanted to go home.",
        f"At last they came to the {place2}.",
    ]
    middle = r.sample(middle, r.randint(3, 6))
    feeling = r.choice(["sad", "afraid", "alone", "hungry"])
    end = r.choice(
        [
            f"In the end {name} and {friend} were good friends.",
            f"After that day {name} was never {feeling} again.",
            f"{name} went home and slept well.",
            "And they all lived happily.",
            f"{name} was happy, and {he} thanked {friend}.",
            f"From that day on they shared the {thing}.",
        ]
    )
    return " ".join(beginning + middle + [end])


def sentences(text):
    return re.split(r"(?<=\.) ", text)


def fact(r, kind, color, thing, values=None):
    """(statement, question); `values` in place of names and cities."""
    if kind == 0:
        code = "".join(r.choice("0123456789") for _ in range(4))
        return (
            f"The code of the {color} {thing} is {code}.",
            f"What is the code of the {color} {thing}?",
        )
    if kind == 1:
        owner = r.choice(values or NAMES)
        return (
            f"The owner of the {color} {thing} is {owner}.",
            f"Who is the owner of the {color} {thing}?",
        )
    place = r.choice(values or CITIES)
    return f"The {color} {thing} is in {place}.", f"Where is the {color} {thing}?"


def some_things(r, count):
    return r.sample([(color, thing) for color in COLORS for thing in THINGS], count)


def recall(r, filler, nearest, farthest):
    """One of several facts is asked for, `nearest` to `farthest` characters after it was said."""
    kind = r.randrange(3)
    count = r.randint(1, 3) if farthest < 900 else r.randint(2, 6)
    facts = [fact(r, kind, *pair) for pair in some_things(r, count)]
    asked = r.randrange(count)
    distance = r.randint(nearest, farthest)
    statement, question = facts[asked]
    before, after = ([s for s, _ in part] for part in (facts[:asked], facts[asked + 1 :]))
    while sum(map(len, after)) < distance:
        after.insert(r.randint(0, len(after)), r.choice(filler))
    opening = r.choice(["Remember: ", "Remember this. ", "Please remember: ", ""])
    text = opening + " ".join([*before, statement, *after]) + r.choice([" ", "\n\n"]) + question
    effort = r.choice([None, None, 50, 75, 100])
    reasoning = r.choice([statement, f"I remember: {statement}"])
    system = r.choice([None, None, HELPFUL])
    return render([(text, reasoning, statement)], system=system, effort=effort)


def many_facts(r, words, count):
    """With words that no template knows in some documents: only copying can answer."""
    if r.random() < 0.8:
        return [fact(r, r.randrange(3), *pair) for pair in some_things(r, count)]
    # Few different first words: both words of a key are needed.
    colors, things = r.sample(words, r.randint(2, count + 1)), r.sample(words, count)
    pairs = [(r.choice(colors), thing) for thing in things]
    return [fact(r, r.randrange(3), *pair, values=words) for pair in pairs]


def recall_all(r, filler, words, smallest, largest):
    """Several facts among filler, then questions about them: most answer tokens can only be copied.
    The sizes are about the number of characters of the first part."""
    size = r.randint(smallest, largest)
    facts = many_facts(r, words, r.randint(3, max(4, min(size // 50, 24))))
    lines = [statement for statement, _ in facts]
    room = size - sum(map(len, lines))
    while room > 0:
        lines.insert(r.randint(0, len(lines)), r.choice(filler))
        room -= len(r.choice(filler))
    asked = r.sample(facts, min(len(facts), r.randint(3, 4 + size // 250)))
    turns = [(question, statement, statement) for statement, question in asked]
    opening = r.choice(["Remember: ", "Remember: ", "Remember this. ", ""]) + " ".join(lines)
    turns[0] = (opening + r.choice([" ", " ", "\n\n"]) + turns[0][0], *turns[0][1:])
    return render(turns, effort=r.choice([None, None, None, 75]))


def copying(r):
    letters = "abcdefghijklmnopqrstuvwxyz"
    unknown = ["".join(r.choice(letters) for _ in range(r.randint(2, 4))) for _ in range(20)]
    pool = COLORS + THINGS + ANIMALS + NAMES + FOODS + KEYS + unknown
    words = [
        r.choice(pool) if r.random() < 0.85 else str(r.randrange(1000))
        for _ in range(r.randint(3, 24))
    ]
    text, kind = " ".join(words), r.randrange(4)
    if kind < 2:
        question, answer = ("Repeat: ", "Say this again: ")[kind] + text, text
    elif kind == 2:
        word, times = r.choice(pool), r.randint(2, 5)
        question, answer = f"Say {word} {times} times.", " ".join([word] * times)
    else:
        question = "Write these words as a list: " + " ".join(words[:6])
        answer = "\n".join("- " + word for word in words[:6])
    effort = r.choice([None, None, 50, 75])
    reasoning = "I write the words."
    if kind < 2:
        reasoning = r.choice(["I will repeat the words.", "I repeat it."])
    return render([(question, reasoning, answer)], effort=effort)


def column_steps(a, operator, b):
    """How it is done on paper for numbers up to 99, where that is more than one step."""
    tens, ones = (a // 10, b // 10), (a % 10, b % 10)
    if operator == "*" or max(a, b) < 10:
        return ""
    if operator == "+":
        carry = "+1" if sum(ones) > 9 else ""
        first = f"{ones[0]}+{ones[1]}={sum(ones)}"
        return f"{first}, {tens[0]}+{tens[1]}{carry}={sum(tens) + len(carry) // 2}, so "
    borrow = "-1" if ones[0] < ones[1] else ""
    top = ones[0] + 10 if borrow else ones[0]
    first = f"{top}-{ones[1]}={top - ones[1]}"
    return f"{first}, {tens[0]}-{tens[1]}{borrow}={tens[0] - tens[1] - len(borrow) // 2}, so "


def exercise(a, operator, b):
    """(term, answer)"""
    term = f"{a} {operator} {b}"
    result = {"+": a + b, "-": a - b, "*": a * b}[operator]
    return term, f"{column_steps(a, operator, b)}{term} = {result}."


def sum_or_product(r):
    """(question, reasoning, answer)"""
    operator = r.choice("++-*")
    if operator == "+":
        a, b = r.randint(0, 99), r.randint(0, 99) if r.random() < 0.6 else r.randint(0, 9)
    elif operator == "-":
        a = r.randint(0, 99)
        b = r.randint(0, a)
    else:
        a, b = r.randint(0, 9), r.randint(0, 9)
    term, answer = exercise(a, operator, b)
    question = r.choice([f"What is {term}?", term, f"Compute {term}."])
    return question, "I compute it.", answer


def arithmetic(r):
    turns = [sum_or_product(r) for _ in range(r.randint(1, 4))]
    return render(turns, effort=r.choice([None, None, 50, 75, 100]))


def sums(r):
    """Many in plain text, and the steps by themselves."""
    lines = []
    for _ in range(4):
        operator = r.choice("+++--*")
        a, b = r.randint(0, 99), r.randint(0, 99)
        if r.random() < 0.2 or operator == "*":
            b %= 10
        if operator == "*":
            a %= 10
        if operator == "-" and b > a:
            a, b = b, a
        term, answer = exercise(a, operator, b)
        lines.append(f"{term}? {answer}")
        for _ in range(r.randint(0, 3)):
            a, b, more = r.randint(0, 9), r.randint(0, 9), r.choice([0, 0, 1])
            step = r.choice([f"{a}+{b}" + "+1" * more, f"{a + b + more}-{a}" + "-1" * more])
            lines.append(f"{step}={a + b + more if '-' not in step else b}")
    return BEGIN + "\n".join(lines) + END


def chat_turn(r, words, kind):
    """(question, reasoning, answer)"""
    if kind == 0:
        question = r.choice(["Hi", "Hello", "Hello!", "Good morning.", "Hi there"])
        answer = r.choice(["Hello! How can I help you?", "Hello! How can I help you today?"])
        return question, "The user says hello. I greet back.", answer
    if kind == 1:
        country, city = r.choice(CAPITALS)
        reasoning = f"The user asks for the capital of {country}. It is {city}."
        return (
            f"What is the capital of {country}?",
            reasoning,
            f"The capital of {country} is {city}.",
        )
    if kind == 2:
        word, opposite = r.choice(OPPOSITES)
        if r.random() < 0.5:
            word, opposite = opposite, word
        answer = f"The opposite of {word} is {opposite}."
        return f"What is the opposite of {word}?", answer, answer
    if kind in (3, 4):
        word, part_of_speech, gloss = r.choice(words)
        question = r.choice([f"What does {word} mean?", f"Define {word}."])
        reasoning = f"The user asks for the meaning of {word}. It is a word ({part_of_speech})."
        return question, reasoning, f"{word} ({part_of_speech}): {gloss.split(';')[0]}."
    if kind in (5, 6):
        animal = r.choice(ANIMALS)
        about = f"story about a {animal}."
        question = r.choice([f"Tell me a {about}", f"Write a short {about}"])
        return question, f"The user wants a {about}", story(r, animal)
    if kind == 7:
        animal, sound = r.choice(SOUNDS)
        answer = f"A {animal} {sound}."
        return f"What does a {animal} do?", answer, answer
    if kind == 8:
        name = r.choice(NAMES)
        return (
            f"My name is {name}.",
            f"The user is called {name}.",
            f"Hello {name}! Nice to meet you.",
        )
    skills = "I can recall facts, call tools, write JSON and tell short stories."
    question, answer = r.choice(
        [
            ("Thank you!", "You are welcome!"),
            ("Thanks.", "You are welcome!"),
            ("Who are you?", "I am a very small language model."),
            ("What can you do?", skills),
        ]
    )
    return question, "I answer politely.", answer


def plain_facts(r):
    sentences = [sentence for sentence, _ in r.sample(KNOWN_FACTS, r.randint(1, 8))]
    if r.random() < 0.3:
        country, city = r.choice(CAPITALS)
        sentences.insert(0, f"The capital of {country} is {city}.")
    return BEGIN + r.choice([" ", "\n"]).join(sentences) + END


def chat_about_facts(r):
    asked = r.sample(KNOWN_FACTS, r.randint(1, 4))
    turns = [(question, sentence, sentence) for sentence, question in asked]
    for i in range(len(turns)):
        if "capital" in turns[i][0] or r.random() < 0.4:
            turns[i] = chat_turn(r, None, 1)
    system = r.choice([None, None, None, HELPFUL])
    return render(turns, system=system, effort=r.choice([None, 50, 75, 100]))


def chat(r, words):
    turns = [chat_turn(r, words, r.randrange(10)) for _ in range(r.randint(1, 3))]
    system = r.choice([None, None, HELPFUL, "Be brief."])
    return render(turns, system=system, effort=r.choice([None, None, 50, 75, 75, 100]))


def tool_request(r):
    """(tool name, arguments, question, reasoning, result as JSON, answer)"""
    name = r.choice(list(TOOLS))
    if name == "get_weather":
        city = r.choice(CITIES)
        question = r.choice(
            [
                f"What is the weather in {city}?",
                f"How is the weather in {city} today?",
                f"Weather in {city}?",
            ]
        )
        arguments, need = {"city": city}, f"the weather in {city}"
        weather, degrees = r.choice(WEATHER), r.randint(0, 35)
        result = {"weather": weather, "temperature": degrees}
        answer = f"The weather in {city} is {weather} with {degrees} degrees."
    elif name == "get_time":
        city = r.choice(CITIES)
        question = r.choice([f"What time is it in {city}?", f"Tell me the time in {city}."])
        arguments, need = {"city": city}, f"the time in {city}"
        time = f"{r.randint(0, 23):02d}:{r.randint(0, 59):02d}"
        result, answer = {"time": time}, f"It is {time} in {city}."
    elif name == "add":
        a, b = r.randint(0, 999), r.randint(0, 999)
        question = r.choice(
            [f"Add {a} and {b}.", f"What is the sum of {a} and {b}?", f"Please add {a} and {b}."]
        )
        arguments, need = {"a": a, "b": b}, f"the sum of {a} and {b}"
        result, answer = {"sum": a + b}, f"The sum of {a} and {b} is {a + b}."
    else:
        key = r.choice(KEYS)
        question = r.choice(
            [f"Look up the value of {key}.", f"What is the value of {key}?", f"Look up {key}."]
        )
        arguments, need = {"key": key}, f"the value of {key}"
        value = r.choice([str(r.randrange(1000)), r.choice(COLORS), r.choice(NAMES)])
        result, answer = {"value": value}, f"The value of {key} is {value}."
    return name, arguments, question, f"I need {need}. I call {name}.", json.dumps(result), answer


def tool_case(r):
    """(question, reasoning, call, result, answer, options of render)"""
    name, arguments, question, reasoning, result, answer = tool_request(r)
    names = [name] + r.sample([n for n in TOOLS if n != name], r.randint(0, 3))
    r.shuffle(names)
    effort = r.choice([None, None, 50, 75, 100])
    system = r.choice([None, "", HELPFUL])
    options = dict(system=system, tools=[TOOLS[n] for n in names], effort=effort)
    return question, reasoning, tool_call(name, arguments), result, answer, options


def tool_use(r):
    """Up to four requests for tools, of which one is always the first one's."""
    question, reasoning, call, result, answer, options = tool_case(r)
    names = {tool["name"] for tool in options["tools"]}
    done = r.choice(["I have the result.", "The result is here."])
    turns = [(question, reasoning, call), (f"<tool_result>{result}</tool_result>", done, answer)]
    for _ in range(r.choice([0, 1, 2, 3, 4])):
        name, arguments, question, reasoning, result, answer = tool_request(r)
        if name in names:
            turns.append((question, reasoning, tool_call(name, arguments)))
            turns.append((f"<tool_result>{result}</tool_result>", done, answer))
    if r.random() < 0.25:
        described = {name: r.choice(descriptions) for name, descriptions in DESCRIPTIONS.items()}
        tools = [dict(tool, description=described[tool["name"]]) for tool in options["tools"]]
        options["tools"] = tools
    return render(turns, **options)


JSON_REASONING = "I write the data as JSON."


def json_case(r):
    """(question, answer, options of render)"""
    kind = r.randrange(4)
    name, city, job, age = r.choice(NAMES), r.choice(CITIES), r.choice(JOBS), r.randint(5, 90)
    if kind == 0:
        fields = [("name", "string", name), ("age", "number", age), ("city", "string", city)]
        text = r.choice(
            [f"{name} is {age} years old and lives in {city}.", f"{name}, {age}, lives in {city}."]
        )
    elif kind == 1:
        fields = [("name", "string", name), ("job", "string", job)]
        text = r.choice([f"{name} is a {job}.", f"{name} works as a {job}."])
    elif kind == 2:
        food, count = r.choice(FOODS), r.randint(1, 50)
        fresh = r.random() < 0.5
        fields = [("item", "string", food), ("count", "number", count), ("fresh", "boolean", fresh)]
        text = f"{count} pieces of {food}, {'fresh' if fresh else 'not fresh'}."
    else:
        color, thing = r.choice(COLORS), r.choice(THINGS)
        fields = [("object", "string", thing), ("color", "string", color)]
        text = r.choice([f"The {thing} is {color}.", f"A {color} {thing}."])
    r.shuffle(fields)
    if len(fields) == 3 and r.random() < 0.4:
        fields = fields[:2]
    schema = object_schema({key: type for key, type, _ in fields})
    answer = json.dumps({key: value for key, _, value in fields})
    effort = r.choice([None, None, 50, 75])
    system = r.choice([None, "Extract the data.", HELPFUL])
    question = r.choice(["", "Extract: "]) + text
    return question, answer, dict(system=system, schema=schema, effort=effort)


def json_by_schema(r):
    question, answer, options = json_case(r)
    return render([(question, JSON_REASONING, answer)], **options)


# ---- The corpus


def natural_sentences(r, bible_documents, entries):
    lines = (line for text in bible_documents[::3] for line in text.split("\n")[1:])
    found = [line for line in lines if 30 < len(line) < 200 and END not in line]
    found += [entry.split(": ", 1)[1].split(";")[0] + "." for entry in entries[:3000]]
    r.shuffle(found)
    return found


def make_documents(scale, wordnet_folder):
    """{category: [document]}"""
    r = random.Random(41)
    words, documents = wordnet(wordnet_folder), {"bible": bible()}
    entries = [f"{word} ({part_of_speech}): {gloss}" for word, part_of_speech, gloss in words]
    r.shuffle(entries)
    pages = [entries[i : i + 6] for i in range(0, len(entries), 6)]
    documents["wordnet"] = [BEGIN + "\n".join(page) + END for page in pages]
    filler = natural_sentences(r, documents["bible"], entries)

    def add(category, count, make, *arguments):
        own = random.Random(f"41 {category}")
        documents[category] = [make(own, *arguments) for _ in range(int(count * scale))]

    add("story", 16000, lambda r: BEGIN + story(r) + END)
    filler += [sentence for _ in range(400) for sentence in sentences(story(r))]
    count = Counter(word for sentence in filler for word in re.findall("[a-z]{3,7}", sentence))
    nouns = sorted({word for word, part_of_speech, _ in words if part_of_speech == "noun"})
    common = [word for word in nouns if count[word] >= 15]
    add("recall_s", 8000, recall, filler, 0, 250)
    add("recall_m", 6000, recall, filler, 200, 1100)
    add("recall_l", 2600, recall, filler, 900, 3000)
    add("recall_x", 500, recall, filler, 2500, 5400)
    add("recall_q", 20000, recall_all, filler, common, 100, 300)
    add("recall_r", 12000, recall_all, filler, common, 300, 1100)
    add("recall_t", 6000, recall_all, filler, common, 1500, 4200)
    add("copy", 12000, copying)
    add("arith", 16000, arithmetic)
    add("sums", 16000, sums)
    add("chat", 12000, chat, words)
    add("facts", 5000, plain_facts)
    add("ask", 5000, chat_about_facts)
    add("tools", 9000, tool_use)
    add("json", 10000, json_by_schema)
    for category, texts in documents.items():
        r.shuffle(texts)
        # The tokenizer's splitting is exact for ASCII and the special tokens.
        ascii_only = (text for text in texts if re.sub("[｜▁]", "", text).isascii())
        documents[category] = list(ascii_only)
    return documents


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--scale", type=float, default=1.0, help="of the generated categories")
    parser.add_argument("--wordnet", type=Path, default="/usr/share/wordnet", metavar="FOLDER")
    options = parser.parse_args()
    options.folder.mkdir(parents=True, exist_ok=True)
    total = 0
    for category, texts in make_documents(options.scale, options.wordnet).items():
        num_held_out = max(len(texts) // 50, 20)
        for part, rows in (("heldout", texts[:num_held_out]), ("train", texts[num_held_out:])):
            with open(options.folder / f"{category}.{part}.jsonl", "w") as file:
                for text in rows:
                    file.write(json.dumps({"text": text}, ensure_ascii=False) + "\n")
        size = sum(map(len, texts))
        total += size
        print(f"{category:10} {len(texts):7} documents {size / 1e6:7.2f} MB")
    print(f"total {total / 1e6:.1f} MB")


if __name__ == "__main__":
    main()
