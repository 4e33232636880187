#include "trireme/tokenizer/pre_tokenizer.h"

#include <algorithm>
#include <utility>

#include <utf8proc.h>

#include "trireme/base/error.h"
#include "trireme/tokenizer/bert_text.h"
#include "trireme/tokenizer/byte_level.h"
#include "trireme/tokenizer/normalizer.h"
#include "trireme/tokenizer/unbuilt_tokenizer.h"
#include "trireme/tokenizer/unicode_versions.h"
#include "trireme/tokenizer/utf8.h"

namespace trireme {

namespace {

// GPT-2's pattern, which ByteLevel applies when use_regex is on.
constexpr const char* kGpt2Pattern =
    R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)";

bool is_number(uint32_t code) {
  // Digits of Unicode 17, which the library's Digits knows already.
  if ((code >= 0x11DE0 && code <= 0x11DE9) || (code >= 0x16FF4 && code <= 0x16FF6)) return true;
  const auto category = utf8proc_category(static_cast<utf8proc_int32_t>(older_character(code)));
  return category == UTF8PROC_CATEGORY_ND || category == UTF8PROC_CATEGORY_NL ||
         category == UTF8PROC_CATEGORY_NO;
}

// Calls piece(text) for each run of characters that `is_of_run`, or each of them, and for the text between.
void split_runs(std::string_view text, bool (*is_of_run)(uint32_t), bool each_alone,
                const std::function<void(std::string_view)>& piece) {
  size_t begin = 0;
  bool in_run = false;
  for_characters(text, [&](size_t offset, const Utf8Character& character) {
    const bool of_run = is_of_run(character.code);
    if (offset > begin && (of_run != in_run || (of_run && each_alone))) {
      piece(text.substr(begin, offset - begin));
      begin = offset;
    }
    in_run = of_run;
  });
  if (begin < text.size()) piece(text.substr(begin));
}

// Calls piece(text) for each word and each punctuation character; white space is dropped.
void split_words(std::string_view text, const std::function<void(std::string_view)>& piece) {
  size_t begin = 0;
  for_characters(text, [&](size_t offset, const Utf8Character& character) {
    const bool space = is_white_space(character.code);
    if (!space && !is_bert_punctuation(character.code)) return;
    const auto bytes = static_cast<size_t>(character.bytes);
    if (begin < offset) piece(text.substr(begin, offset - begin));
    if (!space) piece(text.substr(offset, bytes));
    begin = offset + bytes;
  });
  if (begin < text.size()) piece(text.substr(begin));
}

// Calls piece(text) for pieces that end where a match does.
void split_behind_matches(const SplitPattern& pattern, bool match_others, std::string_view text,
                          const std::function<void(std::string_view)>& piece) {
  size_t begin = 0, done = 0;
  bool previous_matched = false;
  pattern.split(text, [&](std::string_view next, bool is_match) {
    const bool matched = is_match != match_others, joins = matched && !previous_matched;
    if (!joins && begin < done) {
      piece(text.substr(begin, done - begin));
      begin = done;
    }
    done += next.size();
    previous_matched = matched;
  });
  if (begin < done) piece(text.substr(begin, done - begin));
}

}  // namespace

PreTokenizer::PreTokenizer(const Json& json, const std::string& origin) {
  if (!json.is_null()) add(json, origin);
  constexpr size_t kMostSteps = 100;  // a step calls the next one
  if (steps_.size() > kMostSteps)
    refuse_tokenizer(
        origin, cat("the tokenizer's pre_tokenizer has ", steps_.size(), " steps, more than ", kMostSteps));
  const auto byte_level = std::ranges::find(steps_, Kind::byte_level, &Step::kind);
  const auto only_cuts = [](const Step& step) { return step.kind == Kind::split || step.kind == Kind::runs; };
  if (byte_level != steps_.end() && !std::all_of(byte_level + 1, steps_.end(), only_cuts))
    refuse_tokenizer(origin,
                     "the tokenizer's pre_tokenizer has ByteLevel before another step than Split, Digits and "
                     "Punctuation");
}

Alphabet PreTokenizer::alphabet() const {
  const bool bytes = std::ranges::find(steps_, Kind::byte_level, &Step::kind) != steps_.end();
  return bytes ? Alphabet::bytes : Alphabet::characters;
}

bool PreTokenizer::knows_the_beginning() const {
  return std::ranges::any_of(steps_, is_first_metaspace);
}

bool PreTokenizer::splits_before_the_beginning() const {
  return knows_the_beginning() && !is_first_metaspace(steps_.front());
}

bool PreTokenizer::is_first_metaspace(const Step& step) {
  return step.kind == Kind::metaspace && step.prepend == Prepend::first;
}

void PreTokenizer::add(const Json& json, const std::string& origin) {
  const std::string field = origin + ": pre_tokenizer", type = text_value(json, "type", field);
  Step step;
  if (type == "Sequence") {
    for (const Json& part : array_value(json, "pretokenizers", field)) add(part, origin);
    return;
  }
  if (type == "ByteLevel") {
    step.kind = Kind::byte_level;
    step.add_prefix_space = true_or_false(json, "add_prefix_space", field, true);
    if (true_or_false(json, "use_regex", field, true)) step.pattern.emplace_back(kGpt2Pattern, origin);
  } else if (type == "Digits") {
    step.kind = Kind::runs;
    step.is_of_run = is_number;
    step.each_alone = true_or_false(json, "individual_digits", field, false);
  } else if (type == "Punctuation") {
    const auto behavior = text_value(json, "behavior", field, "Isolated");
    if (behavior != "Isolated" && behavior != "Contiguous")
      refuse_tokenizer(origin, cat("the tokenizer splits at punctuation with the behavior \"",
                                   quotation(behavior), "\", not Isolated or Contiguous"));
    step.kind = Kind::runs;
    step.is_of_run = is_bert_punctuation;
    step.each_alone = behavior == "Isolated";
  } else if (type == "Split") {
    step = read_split(json, origin);
  } else if (type == "Metaspace") {
    step = read_metaspace(json, field + ": Metaspace");
  } else if (type == "BertPreTokenizer") {
    step.kind = Kind::bert;
  } else {
    refuse_tokenizer(origin, cat("the tokenizer's pre_tokenizer is ", quotation(type)));
  }
  steps_.push_back(std::move(step));
}

PreTokenizer::Step PreTokenizer::read_split(const Json& json, const std::string& origin) {
  const std::string field = origin + ": pre_tokenizer: Split";
  Step step;
  const Json& pattern = object_value(json, "pattern", field);
  if (const std::string literal = text_value(pattern, "String", field, ""); !literal.empty())
    step.pattern.emplace_back(literal_pattern(literal), origin);
  else
    step.pattern.emplace_back(text_value(pattern, "Regex", field + "'s pattern"), origin);
  const auto behavior = text_value(json, "behavior", field);
  if (behavior != "Isolated" && behavior != "Removed" && behavior != "MergedWithPrevious")
    refuse_tokenizer(origin, cat("the tokenizer splits with the behavior \"", quotation(behavior),
                                 "\", not Isolated, Removed or MergedWithPrevious"));
  const bool invert = true_or_false(json, "invert", field, false);
  step.merge_with_previous = behavior == "MergedWithPrevious";
  step.match_others = invert;
  step.drop_matches = behavior == "Removed" && !invert;
  step.drop_others = behavior == "Removed" && invert;
  return step;
}

PreTokenizer::Step PreTokenizer::read_metaspace(const Json& json, const std::string& field) {
  Step step;
  step.kind = Kind::metaspace;
  step.replacement = text_value(json, "replacement", field);
  if (step.replacement.empty() ||
      step.replacement.size() != static_cast<size_t>(read_character(step.replacement, 0).bytes))
    throw DataError(
        cat(field, ": \"replacement\" is \"", quotation(step.replacement), "\"; expected one character"));
  const auto scheme = text_value(json, "prepend_scheme", field, "always");
  if (scheme != "always" && scheme != "first" && scheme != "never")
    throw DataError(
        cat(field, ": \"prepend_scheme\" is \"", quotation(scheme), "\"; expected always, first or never"));
  step.prepend = scheme == "always" ? Prepend::always : scheme == "first" ? Prepend::first : Prepend::never;
  if (!true_or_false(json, "add_prefix_space", field, true) && step.prepend != Prepend::never)
    throw DataError(cat(field, ": \"add_prefix_space\" is false and \"prepend_scheme\" is ", scheme,
                        "; expected never, or no add_prefix_space"));
  step.splits = true_or_false(json, "split", field, true);
  return step;
}

void PreTokenizer::step(size_t index, std::string_view text, Origin origin, const Sink& sink) const {
  if (text.empty()) return;
  if (index == steps_.size()) {
    sink(text);
    return;
  }
  const Step& now = steps_[index];
  std::string rewritten;
  const auto next = [&](std::string_view piece) {
    const Origin of_piece = piece.data() == text.data() ? origin : Origin::later;
    if (now.kind != Kind::byte_level || index + 1 == steps_.size())
      step(index + 1, piece, of_piece, sink);
    else  // the steps behind it see the alphabet that stands for bytes
      step(index + 1, token_of_bytes(piece), of_piece,
           [&](std::string_view token) { sink(*bytes_of_token(token)); });
  };
  switch (now.kind) {
    case Kind::runs:
      split_runs(text, now.is_of_run, now.each_alone, next);
      return;
    case Kind::bert:
      split_words(text, next);
      return;
    case Kind::metaspace:
      rewritten = replace_all(text, " ", now.replacement);
      if (!rewritten.starts_with(now.replacement) &&
          (now.prepend == Prepend::always || (now.prepend == Prepend::first && origin == Origin::begin)))
        rewritten.insert(0, now.replacement);
      text = rewritten;
      if (!now.splits) {
        next(text);
        return;
      }
      for (size_t begin = 0; begin < text.size();) {
        const size_t end = std::min(text.find(now.replacement, begin + 1), text.size());
        next(text.substr(begin, end - begin));
        begin = end;
      }
      return;
    case Kind::byte_level:
      if (now.add_prefix_space && text[0] != ' ') text = rewritten.append(" ").append(text);
      break;
    case Kind::split:
      break;
  }
  if (now.pattern.empty())
    next(text);
  else if (now.merge_with_previous)
    split_behind_matches(now.pattern[0], now.match_others, text, next);
  else
    now.pattern[0].split(text, [&](std::string_view piece, bool is_match) {
      if (!(is_match ? now.drop_matches : now.drop_others)) next(piece);
    });
}

}  // namespace trireme
