// What the scripted replies of the page's tests are. The one whose key is the longest that occurs in
// the prompt applies, so what is said later in a conversation has the longer key.
//
//   {key, reasoning?, content?, calls?: [{name, arguments}], delayMs?, failAt?}
//
// failAt is the piece at which the engine fails.

const kMarkdown = `# The mill

A mill turns **falling water** into *motion*, with \`wheels\` and ~~magic~~ gears.
It stands [by the river](https://example.org/river).

## Parts

- the wheel
  - buckets
  - an axle
- the race
1. open the gate
2. let the water in

> Water that has passed
> grinds no more.

\`\`\`python
def turn(wheel, water):
    return wheel * water  # <b>not bold</b>
\`\`\`

| part | weight in kg |
|:-----|-------------:|
| wheel | 1200 |
| stone with a rather long name that needs room | 900 |

---

The end.`;

const kAttack = `<script>window.pwned = 1</script>
<img src="https://evil.example/x.png" onerror="window.pwned = 2">

[click](javascript:window.pwned=3) [data](data:text/html,<script>window.pwned=4</script>)
[quote](https://example.org/"onmouseover="window.pwned=5) ![image](https://evil.example/y.png)
<https://example.org/a> <a href="javascript:window.pwned=6">x</a>

\`\`\`"><script>window.pwned=7</script>
</code></pre><script>window.pwned = 8</script>
\`\`\`

| <svg onload=window.pwned=9> | b |
|---|---|
| <iframe src="https://evil.example"> | [x](vbscript:x) |

Done with the attack.`;

export const kCount = 300;

export const kScenarios = [
  { key: "18 degrees and sunny", reasoning: "The tools have answered.",
    content: "It is 18 degrees and sunny in Paris." },
  { key: "use the tools", reasoning: "I need the weather and the time.",
    calls: [{ name: "get_weather", arguments: '{"city": "Paris", "units": ["C", "km/h"]}' },
            { name: "get_time", arguments: '{"zone": "Europe/Paris"}' }] },
  { key: "write markdown", content: kMarkdown },
  { key: "attack the page", reasoning: '<img src=x onerror="window.pwned=10">', content: kAttack },
  { key: "count slowly", content: Array.from({ length: kCount }, (_, i) => `${i + 1}`).join(" "),
    delayMs: 20 },
  { key: "think first", delayMs: 30,
    reasoning: "The user wants a number.\n\nSix times seven is 42.", content: "It is **42**." },
  { key: "fail in the middle", content: "This answer will not come to its end.", failAt: 4 },
  { key: "say hello", content: "Hello! How can I help you today? 🙂" },
];

// The pieces of a text: words with the space before them, as tokenizers like them.
export function piecesOf(text) {
  return text.match(/ ?[^\s]+|\s/gu) ?? [];
}
