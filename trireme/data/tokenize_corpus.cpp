#include "trireme/data/tokenize_corpus.h"

#include <algorithm>
#include <atomic>
#include <exception>
#include <iterator>
#include <mutex>
#include <system_error>

#include <ATen/Parallel.h>

#include "trireme/base/clock.h"
#include "trireme/base/error.h"
#include "trireme/base/sizes.h"
#include "trireme/data/encoded_document.h"
#include "trireme/data/indexed_dataset_writer.h"
#include "trireme/data/set_fingerprint.h"

namespace trireme {

namespace {

// Enough to keep every thread busy, small enough to stay in memory.
constexpr size_t kBatchBytes = size_t{16} << 20;

std::vector<Document> read_batch(TextSource& source) {
  std::vector<Document> batch;
  size_t bytes = 0;
  while (bytes < kBatchBytes) {
    auto document = source.next();
    if (!document) break;
    bytes += document->text.size();
    batch.push_back(std::move(*document));
  }
  return batch;
}

// Encodes batch[i] to encoded[i]. Documents differ in length, so threads take them one by one.
std::vector<EncodedDocument> encode_batch(const Tokenizer& tokenizer, const std::vector<Document>& batch,
                                          std::vector<PieceCache>& caches) {
  std::vector<EncodedDocument> encoded(batch.size());
  std::atomic<size_t> next{0};
  std::mutex failing;
  size_t failed_at = batch.size();
  std::exception_ptr failure;
  at::parallel_for(0, static_cast<int64_t>(caches.size()), 1, [&](int64_t begin, int64_t end) {
    for (int64_t worker = begin; worker < end; ++worker) {
      for (size_t i = next++; i < batch.size(); i = next++) {
        try {
          encoded[i] = encode_document(tokenizer, batch[i].text, batch[i].prompt_bytes,
                                       caches[static_cast<size_t>(worker)]);
        } catch (const DataError& error) {
          const std::lock_guard<std::mutex> lock(failing);
          if (i >= failed_at) continue;
          failed_at = i;  // the error names the first failed document in order
          failure = std::make_exception_ptr(DataError(cat(batch[i].origin, ": ", error.what())));
        }
      }
    }
  });
  if (failure) std::rethrow_exception(failure);
  return encoded;
}

// As a chat template writes <s> itself. True if `begin` stood twice.
bool drop_second_begin(EncodedDocument& document, const std::vector<int32_t>& begin) {
  const std::vector<int32_t>& ids = document.ids;
  const auto length = static_cast<std::ptrdiff_t>(begin.size());
  if (begin.empty() || std::ssize(ids) < 2 * length ||
      !std::equal(begin.begin(), begin.end(), ids.begin() + length))
    return false;
  document.drop_first(length);
  return true;
}

}  // namespace

std::string CorpusReport::prompts_text() const {
  return prompts == 0 ? ""
                      : cat(format_count(prompts), " documents, ", format_count(prompt_tokens),
                            " tokens, which are not predicted");
}

std::vector<std::string> CorpusReport::changed_text_lines() const {
  std::vector<std::string> lines = bad_record_lines(source.bad_records);
  const auto tell = [&](int64_t documents, const std::string& what) {
    if (documents > 0) lines.push_back(cat(what, ": ", format_count(documents), " documents"));
  };
  tell(source.empty_documents, "empty, left out");
  tell(replaced_documents, "not valid UTF-8, the wrong bytes became U+FFFD");
  tell(begun_documents, "begin with the tokenizer's first token themselves, which is there once");
  return lines;
}

CorpusReport tokenize_corpus(const Tokenizer& tokenizer, const std::vector<std::filesystem::path>& inputs,
                             const std::filesystem::path& prefix, const CorpusOptions& options,
                             const std::function<void(const CorpusReport&)>& progress) {
  const double start = now_seconds();
  const int32_t end_of_text = options.append_end_of_text ? tokenizer.end_of_text_id() : -1;
  TextSource source(inputs, options.field, options.field_flag, options.on_bad_record);
  IndexedDatasetWriter writer(prefix, options.vocab_size > 0 ? options.vocab_size : tokenizer.vocab_size());
  std::vector<PieceCache> caches(static_cast<size_t>(at::get_num_threads()));
  CorpusReport report;
  const auto update = [&] {
    report.documents = writer.documents();
    report.tokens = writer.tokens();
    report.source = source.counts();
    report.seconds = now_seconds() - start;
  };
  for (auto batch = read_batch(source); !batch.empty(); batch = read_batch(source)) {
    auto encoded = encode_batch(tokenizer, batch, caches);
    for (size_t i = 0; i < batch.size(); ++i) {
      if (batch[i].wrong_utf8) ++report.replaced_documents;
      if (drop_second_begin(encoded[i], tokenizer.begin_of_text())) ++report.begun_documents;
      auto& [ids, prompt_tokens] = encoded[i];
      if (options.append_end_of_text && (ids.empty() || ids.back() != end_of_text))
        ids.push_back(end_of_text);
      // The end is predicted, also after a completion of nothing.
      if (options.append_end_of_text) prompt_tokens = std::min<int64_t>(prompt_tokens, std::ssize(ids) - 1);
      report.longest_document_tokens =
          std::max(report.longest_document_tokens, static_cast<int64_t>(ids.size()));
      if (prompt_tokens > 0) ++report.prompts;
      report.prompt_tokens += prompt_tokens;
      writer.add_document(ids, prompt_tokens);
    }
    update();
    if (progress) progress(report);
  }
  if (source.counts().files == 0)
    throw DataError(
        cat(inputs.front().string(), ": holds no text file (", source.counts().left_out_files, " files and ",
            source.counts().hidden_entries, " hidden entries were left out",
            source.counts().left_out.empty() ? "" : ", such as " + source.counts().left_out.front(), ")"));
  if (const BadRecords& bad = source.counts().bad_records; writer.documents() == 0 && bad.count > 0)
    throw DataError(cat(inputs.front().string(), ": no line is a document, and ", bad.count,
                        " were skipped (--on_bad_record skip); the first: ", bad.first.front()));
  // Removes an older fingerprint first: a fingerprint never lies beside another set's tokens.
  std::error_code ignored;
  std::filesystem::remove(set_fingerprint_file(prefix), ignored);
  writer.finish();
  update();
  write_set_fingerprint(prefix, tokenizer.file(), options.append_end_of_text,
                        {report.documents, report.tokens, report.prompt_tokens, writer.largest_id()});
  return report;
}

}  // namespace trireme
