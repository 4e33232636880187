#include "trireme/tokenizer/normalizer.h"

#include <algorithm>
#include <utility>

#include "trireme/base/error.h"
#include "trireme/tokenizer/canonical_form.h"
#include "trireme/tokenizer/unbuilt_tokenizer.h"
#include "trireme/tokenizer/utf8.h"

namespace trireme {

Normalizer::Normalizer(const Json& json, const std::string& origin) {
  if (!json.is_null()) add(json, origin);
}

void Normalizer::add(const Json& json, const std::string& origin) {
  const std::string field = origin + ": normalizer", type = text_value(json, "type", field);
  Step step;
  if (type == "Sequence") {
    for (const Json& part : array_value(json, "normalizers", field)) add(part, origin);
    return;
  }
  if (type == "NFC") {
    step.kind = Kind::nfc;
  } else if (type == "Prepend") {
    step.kind = Kind::prepend;
    lengthens_the_beginning_ = true;
    step.content = text_value(json, "prepend", field);
  } else if (type == "Replace") {
    step.kind = Kind::replace;
    const Json& pattern = object_value(json, "pattern", field + ": Replace");
    step.pattern = text_value(pattern, "String", field + ": Replace", "");
    if (step.pattern.empty())
      refuse_tokenizer(origin,
                       cat("the tokenizer's normalizer replaces ", quotation(pattern), ", not a String"));
    step.content = text_value(json, "content", field);
    lengthens_the_beginning_ |=
        !step.content.empty() &&
        step.content.size() > static_cast<size_t>(read_character(step.content, 0).bytes);
    // A small file must not turn a text into one that fills the memory.
    constexpr size_t kMostGrowth = 1000;
    growth_ *= std::max<size_t>(1, (step.content.size() + step.pattern.size() - 1) / step.pattern.size());
    if (growth_ > kMostGrowth)
      refuse_tokenizer(origin, cat("the tokenizer's normalizer may make a text ", growth_, " times as long"));
    keeps_the_beginning_ &= !step.content.empty() &&
                            step.pattern.size() == static_cast<size_t>(read_character(step.pattern, 0).bytes);
  } else if (type == "BertNormalizer") {
    step.kind = Kind::bert;
    step.bert.clean_text = true_or_false(json, "clean_text", field);
    step.bert.handle_chinese_chars = true_or_false(json, "handle_chinese_chars", field);
    step.bert.lowercase = true_or_false(json, "lowercase", field);
    step.bert.strip_accents = true_or_false(json, "strip_accents", field, step.bert.lowercase);
    keeps_the_beginning_ = false;
  } else {
    refuse_tokenizer(origin, cat("the tokenizer's normalizer is ", quotation(type),
                                 ", not null, NFC, Prepend, Replace, BertNormalizer or a Sequence"));
  }
  steps_.push_back(std::move(step));
}

std::string_view Normalizer::normalize(std::string_view text, std::string& storage) const {
  std::string next;
  for (const Step& step : steps_) {
    if (step.kind == Kind::nfc) {
      if (!may_change_when_composed(text)) continue;
      next = canonical_form(text, CanonicalForm::composed);
    } else if (step.kind == Kind::prepend) {
      if (text.empty()) continue;
      next.assign(step.content).append(text);
    } else if (step.kind == Kind::replace) {
      next = replace_all(text, step.pattern, step.content);
    } else {
      next = bert_text(text, step.bert);
    }
    storage.swap(next);
    text = storage;
  }
  return text;
}

std::string replace_all(std::string_view text, std::string_view pattern, std::string_view content) {
  std::string out;
  out.reserve(text.size() + text.size() / 4);
  size_t done = 0;
  for (size_t found = text.find(pattern); found != std::string_view::npos; found = text.find(pattern, done)) {
    out.append(text.substr(done, found - done)).append(content);
    done = found + pattern.size();
  }
  out.append(text.substr(done));
  return out;
}

}  // namespace trireme
