#include "trireme/data/mix_sets.h"

#include <algorithm>
#include <deque>
#include <limits>
#include <optional>
#include <system_error>
#include <utility>

#include "trireme/base/error.h"
#include "trireme/base/folder_entries.h"
#include "trireme/data/chat_format.h"
#include "trireme/data/indexed_dataset.h"
#include "trireme/data/indexed_dataset_writer.h"
#include "trireme/data/sample_order.h"
#include "trireme/data/set_fingerprint.h"

namespace trireme {
namespace {

// One set on its way into the mix.
class Source {
 public:
  Source(const SourceOfMix& source, uint64_t seed)
      : set_(source.prefix), weight_(source.weight), seed_(seed), order_(set_.documents(), seed, 0) {
    of_mix_.prefix = source.prefix;
  }

  const IndexedDataset& set() const { return set_; }
  const MixReport::OfSource& of_mix() const { return of_mix_; }
  // How far it is: the set with the least of it is furthest behind its share.
  double tokens_by_weight() const { return static_cast<double>(of_mix_.tokens) / weight_; }

  // The next document that has tokens.
  TokenSpan next() {
    TokenSpan document;
    while (document.size() == 0) {
      if (at_ == set_.documents()) {
        order_ = SampleOrder(set_.documents(), seed_, ++epoch_);
        at_ = 0;
      }
      const int64_t number = order_[at_++];
      document = {set_.document_begin(number), set_.document_begin(number + 1)};
    }
    ++of_mix_.documents;
    of_mix_.tokens += document.size();
    of_mix_.times_read = static_cast<double>(of_mix_.tokens) / static_cast<double>(set_.tokens());
    return document;
  }
  // Whether any document that has tokens is left before one comes again.
  bool has_more_of_epoch() {
    for (; at_ < set_.documents(); ++at_)
      if (const int64_t number = order_[at_]; set_.document_begin(number) < set_.document_begin(number + 1))
        return true;
    return false;
  }

 private:
  IndexedDataset set_;
  double weight_;
  uint64_t seed_;
  SampleOrder order_;
  int64_t epoch_ = 0;
  int64_t at_ = 0;  // in the order
  MixReport::OfSource of_mix_;
};

// Other writers than ours use two bytes for all 65,536 ids.
TokenType type_of_mix(const std::deque<Source>& sources) {
  const bool narrow = std::ranges::all_of(
      sources, [](const Source& one) { return token_bytes(one.set().token_type()) <= 2; });
  return narrow ? TokenType::uint16 : TokenType::int32;
}

// Copies a document with its prompts.
void add_document(const IndexedDataset& set, TokenSpan document, std::vector<int64_t>& read,
                  std::vector<int32_t>& ids, IndexedDatasetWriter& writer) {
  read.resize(static_cast<size_t>(document.size()));
  set.read(document.begin, document.size(), read.data(), std::numeric_limits<int32_t>::max());
  ids.assign(read.begin(), read.end());
  TokenSpans prompts;
  set.prompts().for_prompts(document, [&](TokenSpan prompt) {
    prompts.push_back({prompt.begin - document.begin, prompt.end - document.begin});
  });
  writer.add_document(ids, prompts);
}

void refuse_itself(const std::vector<SourceOfMix>& sources, const std::filesystem::path& prefix) {
  for (const SourceOfMix& source : sources)
    if (are_one(indexed_dataset_bin(source.prefix), indexed_dataset_bin(prefix)))
      throw ConfigError(cat(prefix.string(), ": is a set of the mix itself: choose another name"));
}

}  // namespace

MixReport mix_sets(const std::vector<SourceOfMix>& sources, const std::filesystem::path& prefix,
                   const MixOptions& options) {
  refuse_itself(sources, prefix);
  std::deque<Source> all;  // open files do not move
  std::vector<std::filesystem::path> prefixes;
  for (const SourceOfMix& source : sources) {
    all.emplace_back(source, options.seed + all.size());
    prefixes.push_back(source.prefix);
  }
  const std::optional<Json> fingerprint = shared_fingerprint(prefixes);
  MixReport report;
  const ChatFormat chats =
      chat_format_of_sets(prefixes, [&](const std::string& note) { report.notes.push_back(note); });
  IndexedDatasetWriter writer(prefix, type_of_mix(all));
  std::vector<int64_t> read;
  std::vector<int32_t> ids;
  while (options.tokens == 0 || writer.tokens() < options.tokens) {
    Source& behind = *std::ranges::min_element(all, {}, &Source::tokens_by_weight);
    if (options.tokens == 0 && !behind.has_more_of_epoch()) break;
    const TokenSpan document = behind.next();
    add_document(behind.set(), document, read, ids, writer);
    report.longest_document_tokens = std::max(report.longest_document_tokens, document.size());
    report.prompt_tokens += behind.set().prompts().tokens_in(document);
  }
  // An older fingerprint never lies beside another set's tokens.
  std::error_code ignored;
  std::filesystem::remove(set_fingerprint_file(prefix), ignored);
  writer.finish();
  report.documents = writer.documents();
  report.tokens = writer.tokens();
  report.fingerprint = fingerprint.has_value();
  if (fingerprint || !chats.empty()) {
    Json told = fingerprint.value_or(Json{{"format", 1}});
    write_chat_format(chats, told);
    write_shared_fingerprint(prefix, std::move(told),
                             {report.documents, report.tokens, report.prompt_tokens, writer.largest_id()});
  }
  for (const Source& source : all) report.sources.push_back(source.of_mix());
  return report;
}

}  // namespace trireme
