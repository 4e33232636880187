#include "trireme/train/training_data.h"

#include "trireme/base/error.h"
#include "trireme/base/folder_entries.h"
#include "trireme/base/json.h"
#include "trireme/base/machine_identity.h"
#include "trireme/base/sizes.h"
#include "trireme/data/packing.h"
#include "trireme/data/set_fingerprint.h"
#include "trireme/train/checkpoint_names.h"
#include "trireme/train/checksum.h"
#include "trireme/train/data_sources.h"
#include "trireme/train/remembered_checksums.h"
#include "trireme/train/run_directory.h"

namespace fs = std::filesystem;

namespace trireme {

namespace {

void write_tokens(const TextToTokenize& text, const std::function<void(const std::string&)>& note) {
  refuse_missing(text.input);
  const CorpusReport report =
      tokenize_corpus(Tokenizer::load(text.tokenizer_from), {text.input}, text.prefix, text.corpus);
  if (!note) return;
  note(cat("tokenized ", quotation(text.input.string()), ": ", format_count(report.documents), " documents, ",
           format_count(report.tokens), " tokens, the longest document ",
           format_count(report.longest_document_tokens)));
  if (report.prompts > 0) note(cat("prompts: ", report.prompts_text()));
  for (const std::string& line : report.changed_text_lines()) note(line);
}

// That every rank's set is rank 0's. The digest is of some blocks alone, so that counts say what it may miss.
void compare_sets(const IndexedDataset& set, const fs::path& prefix, int rank, Agreement& agreement) {
  const auto differs = [&](const auto&... what) {
    throw ConfigError(cat("rank ", rank, " on ", host_name(), " finds ", what...));
  };
  const int64_t tokens = agreement.of_rank_0(set.tokens());
  const int64_t prompt_tokens = set.prompts().tokens_in(whole_set(set));
  const int64_t prompt_tokens_of_0 = agreement.of_rank_0(prompt_tokens);
  agreement.all_or_none(cat("comparing ", prefix.string()), [&] {
    if (set.tokens() != tokens)
      differs("a set of ", set.tokens(), " tokens at ", prefix.string(), ", where that of rank 0 has ",
              tokens, ": copy rank 0's there, or name one that every machine sees");
    if (prompt_tokens != prompt_tokens_of_0)
      differs("other prompts in ", prefix.string(),
              " than rank 0: copy rank 0's set there, or name one that every machine sees");
  });
  uint64_t digest = 0;
  agreement.all_or_none(cat("reading ", prefix.string()), [&] { digest = digest_of_set(prefix); });
  const auto digest_of_0 = static_cast<uint64_t>(agreement.of_rank_0(static_cast<int64_t>(digest)));
  agreement.all_or_none(cat("comparing ", prefix.string()), [&] {
    if (digest != digest_of_0)
      differs("other tokens at ", prefix.string(), " (digest ", checksum_text(digest),
              ") than rank 0 (digest ", checksum_text(digest_of_0),
              "), though as many: copy rank 0's set there, or name one that every machine sees");
  });
}

}  // namespace

std::shared_ptr<const IndexedDataset> open_tokens(const TextToTokenize& text, int rank, Agreement& agreement,
                                                  const std::function<void(const std::string&)>& note) {
  // A set may lie on one machine alone, so rank 0 decides whether the input is a set.
  bool is_set = false;
  const std::string input = quotation(text.input.string());
  agreement.all_or_none(cat("looking at ", input),
                        [&] { is_set = rank == 0 && is_indexed_dataset(text.input); });
  is_set = agreement.any(is_set);
  const fs::path& prefix = is_set ? text.input : text.prefix;
  if (!is_set)
    agreement.while_rank_0_works(cat("tokenizing ", input), [&] {
      if (!is_indexed_dataset(prefix)) write_tokens(text, note);
    });
  std::shared_ptr<const IndexedDataset> set;
  agreement.all_or_none(cat("opening ", prefix.string()), [&] {
    if (rank != 0 && !is_indexed_dataset(prefix))
      throw ConfigError(cat("rank ", rank, " on ", host_name(), " finds no tokenized set at ",
                            prefix.string(), " (.bin and .idx), where rank 0 ",
                            is_set ? "found one: name a set that every machine sees, or copy this one there"
                                   : "wrote one: give an --output_dir that every machine sees"));
    set = std::make_shared<IndexedDataset>(prefix, is_set ? "" : text.input.string());
    if (rank == 0 && is_set) check_set_fingerprint(*set, text.tokenizer_from, text.corpus.vocab_size);
  });
  compare_sets(*set, prefix, rank, agreement);
  return set;
}

namespace {

// The name holds the text's digest: tokens of another text never have it.
fs::path prefix_of_text(const RunDirectory& run, const char* name, const std::string& digest) {
  return run.data() / cat(name, "-", digest);
}

// The descriptions of all data that the checkpoint's run knew; with stages of several files, of each.
std::vector<Json> saved_sources(const fs::path& checkpoint) {
  const std::string origin = (checkpoint / kTrainerStateFile).string();
  const Json state = read_json(checkpoint / kTrainerStateFile);
  std::vector<Json> sources;
  const Json* data = find_field(state, "data", origin);
  if (data == nullptr) return sources;
  for (const char* name : {"train", "eval"})
    if (const Json* source = find_field(*data, name, origin)) sources.push_back(*source);
  if (find_field(*data, kSavedStages, origin) != nullptr)
    for (const Json& source : array_value(*data, kSavedStages, origin)) sources.push_back(source);
  return sources;
}

// The description of a text that is gone, from the checkpoint's run; null if the text is there or its
// tokens are not.
Json source_without_text(const TextToTokenize& text, const RunDirectory& run, const fs::path& checkpoint,
                         const char* name) {
  if (is_there(text.input) || is_indexed_dataset(text.input)) return nullptr;
  for (const Json& saved : saved_sources(checkpoint)) {
    Json source = describe_gone_text(text, saved);
    if (source.is_null()) continue;
    const fs::path prefix = prefix_of_text(run, name, source.at("digest"));
    if (!is_indexed_dataset(prefix)) continue;
    try {
      IndexedDataset{prefix};
    } catch (const DataError& error) {
      throw DataError(cat("the text ", text.input.string(),
                          " is gone, and the tokens that were made of it are damaged: ", error.what()));
    }
    return source;
  }
  return nullptr;
}

}  // namespace

DataSources look_at_sources(const TrainOptions& options, int64_t vocab_size,
                            const std::optional<fs::path>& checkpoint, Agreement& agreement,
                            const std::function<void(const std::string&)>& note) {
  DataSources sources;
  const RunDirectory run(options.output_dir);
  std::optional<RememberedChecksums> remembered;
  const auto look = [&](const fs::path& input, const char* name, Json& source) {
    TextToTokenize text{
        .input = input, .tokenizer_from = options.model_dir, .corpus = options.samples.corpus};
    text.corpus.vocab_size = vocab_size;
    uint64_t digest = 0;
    agreement.while_rank_0_works(cat("reading ", quotation(input.string())), [&] {
      if (!remembered) remembered.emplace(run.sources(), note);
      if (checkpoint) source = source_without_text(text, run, *checkpoint, name);
      if (source.is_null())
        source = describe_source(text, *remembered, note);
      else
        note(cat("the text ", input.string(), " is gone: going on with the tokens that were made of it"));
      digest = parse_checksum(source.at("digest"), input.string());
    });
    digest = static_cast<uint64_t>(agreement.of_rank_0(static_cast<int64_t>(digest)));
    text.prefix = prefix_of_text(run, name, checksum_text(digest));
    return text;
  };
  sources.train = look(options.train_file, "train", sources.train_source);
  if (!options.eval_file.empty()) sources.eval = look(options.eval_file, "eval", sources.eval_source);
  return sources;
}

LoaderOptions step_loader_options(const LoaderOptions& samples, const TrainOptions& options,
                                  int64_t sequence_tokens, int ranks) {
  LoaderOptions loader = samples;
  loader.sequence_tokens = sequence_tokens;
  loader.batch_size = options.per_device_train_batch_size;
  loader.accumulation_steps = options.gradient_accumulation_steps;
  loader.dp_size = ranks / (options.engine.ulysses * options.engine.ring);
  loader.ulysses = options.engine.ulysses;
  loader.ring = options.engine.ring;
  loader.seed = static_cast<uint64_t>(options.seed);
  if (loader.masked_tokens) loader.masked_tokens->seed = loader.seed;
  return loader;
}

TrainingData open_training_data(const DataSources& sources, double validation_split_percentage, int rank,
                                Agreement& agreement, const std::function<void(const std::string&)>& note) {
  TrainingData data;
  data.train.set = open_tokens(sources.train, rank, agreement, note);
  data.train.range = whole_set(*data.train.set);
  if (validation_split_percentage > 0) {
    const HeldOutSplit split = split_held_out(*data.train.set, validation_split_percentage / 100);
    data.train.range = split.train;
    data.held_out = TokenSource{data.train.set, split.held_out};
    const std::string held_out = held_out_note(*data.train.set, split.held_out);
    if (rank == 0 && note) note(held_out);
  } else if (sources.eval) {
    const auto set = open_tokens(*sources.eval, rank, agreement, note);
    data.held_out = TokenSource{set, whole_set(*set)};
  }
  return data;
}

void plan_with_documents(EngineOptions& engine, const TokenSource& train, PackingRule packing) {
  PlannedBatch& batch = engine.planned_batch;
  if (engine.recompute.policy == Recompute::automatic)
    batch.document_tokens = mean_context_tokens(*train.set, packing, batch.tokens);
}

std::vector<std::string> sample_notes(const TokenSource& tokens, PackingRule packing,
                                      int64_t sequence_tokens) {
  std::vector<std::string> notes;
  const IndexedDataset& set = *tokens.set;
  const bool prompts = !set.prompts().empty();
  if (prompts) {
    notes.push_back(cat("prompts: ", format_count(set.prompts().tokens_in(tokens.range)), " of ",
                        format_count(tokens.range.size()), " tokens are read and not predicted"));
    if (!packing.whole_documents())
      notes.back() +=
          cat("; warning: a document that a sample's end cuts goes on without its prompt with --packing ",
              name_of(packing.kind), "; best_fit keeps documents whole");
  }
  if (!packing.whole_documents()) return notes;
  const LongDocumentsCount count = count_long_documents(set, tokens.range, sequence_tokens);
  if (count.longer == 0) return notes;
  const bool cut = packing.long_documents == LongDocuments::cut;
  const auto what_becomes = [&] {
    if (packing.long_documents == LongDocuments::skip) return "they are left out";
    return cut ? "each is cut into several" : "only the beginning of each is read";
  };
  notes.push_back(
      cat(prompts && cut ? "warning: " : "", format_count(count.longer), " of ",
          format_count(count.documents), " documents (",
          format_percent(static_cast<double>(count.longer_tokens) / static_cast<double>(tokens.range.size())),
          " of the tokens) are longer than a sample of ", format_count(sequence_tokens),
          " tokens, the longest has ", format_count(count.longest_tokens), ": ", what_becomes(),
          prompts && cut ? ", and its answers lose their prompts; --long_documents skip leaves such "
                           "documents out"
                         : ""));
  return notes;
}

}  // namespace trireme
