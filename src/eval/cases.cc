#include "eval/cases.h"

#include <algorithm>
#include <utility>

#include "base/check.h"

namespace millrace {
namespace {

// Common words, so that any tokenizer and any model of English knows them.
constexpr std::string_view kColors[] = {"red",   "blue", "green", "yellow", "black",  "white",
                                        "brown", "gray", "pink",  "orange", "purple", "silver"};
constexpr std::string_view kThings[] = {"door",  "box",  "key",   "house", "boat",  "table",
                                        "lamp",  "book", "chair", "tower", "coat",  "hat",
                                        "wheel", "bell", "car",   "ship",  "clock", "gate"};
constexpr std::string_view kWho[] = {"The farmer",   "A young teacher", "The old sailor",
                                     "My brother",   "The baker",       "A tired driver",
                                     "Our neighbor", "The little girl"};
constexpr std::string_view kDid[] = {"walked slowly",      "bought some bread",  "told a story",
                                     "looked for a horse", "met an old friend",  "ate an apple",
                                     "sang a song",        "waited for the rain"};
constexpr std::string_view kWhere[] = {"near the river",      "in the garden",    "at the market",
                                       "behind the mountain", "on the way home",  "in the village",
                                       "under a big tree",    "by the quiet lake"};
constexpr std::string_view kWhen[] = {"in the morning", "late at night", "one day in spring",
                                      "after dinner",   "long ago",      "before the winter came"};

constexpr int kNumOtherFacts = 3;

template <size_t n>
std::string_view one_of(Random& random, const std::string_view (&words)[n]) {
  return words[random.between(0, n - 1)];
}

// Text in pieces, each with the blank in front of it.
void add_word(std::string& text, std::string_view word) {
  if (!text.empty()) text += ' ';
  text += word;
}

std::string filler_sentence(Random& random) {
  std::string text(one_of(random, kWho));
  add_word(text, one_of(random, kDid));
  add_word(text, one_of(random, kWhere));
  add_word(text, one_of(random, kWhen));
  return text + ".";
}

std::vector<std::string> filler(Random& random, const Tokenizer& tokenizer, int64_t num_tokens) {
  std::vector<std::string> sentences;
  while (true) {
    std::string sentence = filler_sentence(random);
    num_tokens -= int64_t(tokenizer.encode(" " + sentence, SpecialTokens::kPlainText).size());
    if (num_tokens < 0) return sentences;
    sentences.push_back(std::move(sentence));
  }
}

struct Fact {
  std::string thing;  // "red door"
  std::string value;

  std::string begin() const { return "The code of the " + thing + " is "; }
  std::string sentence() const { return begin() + value + "."; }
};

// Facts about different things, with different values.
std::vector<Fact> make_facts(Random& random, int count) {
  std::vector<Fact> facts;
  while (int(facts.size()) < count) {
    Fact fact;
    fact.thing = one_of(random, kColors);
    add_word(fact.thing, one_of(random, kThings));
    fact.value = std::to_string(random.between(1000, 9999));
    const auto is_alike = [&](const Fact& other) {
      return other.thing == fact.thing || other.value == fact.value;
    };
    if (std::none_of(facts.begin(), facts.end(), is_alike)) facts.push_back(std::move(fact));
  }
  return facts;
}

std::string copied_item(Random& random) {
  switch (random.between(0, 3)) {
    case 0:
      return std::to_string(random.between(0, 999));
    case 1:
      return std::string(one_of(random, kColors));
    default:
      return std::string(one_of(random, kThings));
  }
}

}  // namespace

std::vector<EvalCase> text_windows(const Tokenizer& tokenizer, std::span<const int32_t> text,
                                   std::optional<int32_t> bos, int64_t window, int64_t stride) {
  MR_CHECK_OP(stride, >=, 1);
  MR_CHECK_OP(stride, <, window);
  const int64_t num_front = bos ? 1 : 0, most = window - num_front, size = int64_t(text.size());
  std::vector<EvalCase> windows;
  for (int64_t begin = 1 - num_front; begin < size;) {
    const int64_t end = windows.empty() ? std::min(most, size) : std::min(begin + stride, size);
    const int64_t first = std::max<int64_t>(0, end - most);
    EvalCase& added = windows.emplace_back();
    if (bos) added.token_ids.push_back(*bos);
    added.token_ids.insert(added.token_ids.end(), text.begin() + first, text.begin() + end);
    added.judged_begin = num_front + begin - first;
    added.judged_end = num_front + end - first;
    for (int64_t i = begin; i < end; ++i) {
      added.num_judged_bytes += int64_t(tokenizer.token_bytes(text[size_t(i)]).size());
    }
    begin = end;
  }
  return windows;
}

EvalText needle_text(Random& random, const Tokenizer& tokenizer, EvalForm form,
                     int64_t num_filler_tokens, double depth) {
  const std::vector<Fact> facts = make_facts(random, 1 + kNumOtherFacts);
  std::vector<std::string> lines = filler(random, tokenizer, num_filler_tokens);
  const auto before = int64_t(depth * double(lines.size()) + 0.5);
  // The others first: the fact's place counts filler alone.
  std::vector<std::pair<int64_t, const Fact*>> places{{before, &facts[0]}};
  for (size_t i = 1; i < facts.size(); ++i) {
    places.push_back({random.between(0, int64_t(lines.size())), &facts[i]});
  }
  std::stable_sort(places.begin(), places.end(),
                   [](const auto& a, const auto& b) { return a.first < b.first; });
  EvalText text;
  size_t next = 0;
  for (size_t i = 0; i <= lines.size(); ++i) {
    while (next < places.size() && places[next].first == int64_t(i)) {
      add_word(text.prompt, places[next++].second->sentence());
    }
    if (i < lines.size()) add_word(text.prompt, lines[i]);
  }
  text.reply = facts[0].begin();
  text.judged_begin = text.reply.size();
  text.judged_end = text.judged_begin + facts[0].value.size();
  text.reply += facts[0].value + ".";
  text.prompt += "\n\n";
  if (form == EvalForm::kChat) {
    text.prompt = "Remember: " + text.prompt + "What is the code of the " + facts[0].thing + "?";
  }
  return text;
}

EvalText copy_text(Random& random, EvalForm form, int64_t num_items) {
  std::string items;
  for (int64_t i = 0; i < num_items; ++i) add_word(items, copied_item(random));
  if (form == EvalForm::kChat) return {"Repeat: " + items, items, 0, items.size(), true};
  const std::string label = "List: ";
  return {label + items + "\n", label + items + "\n", label.size(), label.size() + items.size() + 1,
          false};
}

EvalCase make_case(const Tokenizer& tokenizer, std::vector<int32_t> front, std::string_view text,
                   size_t judged_begin, size_t judged_end, std::optional<int32_t> end) {
  EvalCase made;
  made.token_ids = std::move(front);
  made.num_judged_bytes = int64_t(judged_end - judged_begin);
  made.judged_begin = made.judged_end = -1;
  size_t at = 0;
  for (const int32_t id : tokenizer.encode(text, SpecialTokens::kPlainText)) {
    const size_t next = at + tokenizer.token_bytes(id).size();
    if (made.judged_begin < 0 && next > judged_begin)
      made.judged_begin = int64_t(made.token_ids.size());
    if (at < judged_end) made.judged_end = int64_t(made.token_ids.size()) + 1;
    made.token_ids.push_back(id);
    at = next;
  }
  if (end) {
    made.token_ids.push_back(*end);
    made.judged_end = int64_t(made.token_ids.size());
  }
  MR_CHECK_OP(made.judged_begin, >=, 1);
  MR_CHECK_OP(made.judged_begin, <, made.judged_end);
  return made;
}

}  // namespace millrace
