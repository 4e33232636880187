#include "trireme/cli/tokenize.h"

#include <algorithm>
#include <functional>
#include <iostream>
#include <system_error>
#include <unistd.h>

#include <ATen/Parallel.h>

#include "trireme/base/error.h"
#include "trireme/base/sizes.h"
#include "trireme/base/terminal.h"
#include "trireme/cli/model_directory.h"
#include "trireme/cli/process_options.h"
#include "trireme/cli/unread_flags.h"
#include "trireme/data/indexed_dataset.h"

namespace trireme {

namespace {

std::string speed_of(const CorpusReport& report) {
  const double megabytes = static_cast<double>(report.source.text_bytes) / 1e6;
  return format_fixed(megabytes / std::max(report.seconds, 1e-9), 1) + " MB/s";
}

void print_progress(const CorpusReport& report) {
  std::cerr << "\r" << format_count(report.documents) << " documents, " << format_count(report.tokens)
            << " tokens, " << speed_of(report) << std::flush;
}

void print_report(const CorpusReport& report, const std::filesystem::path& output) {
  const auto line = [](const char* name, const std::string& value) {
    std::cout << "  " << name << value << "\n";
  };
  std::cout << "wrote " << indexed_dataset_bin(output).string() << " and "
            << indexed_dataset_idx(output).string() << "\n";
  line("documents           ", format_count(report.documents));
  line("tokens              ", format_count(report.tokens));
  line("longest document    ", cat(format_count(report.longest_document_tokens), " tokens"));
  if (report.prompts > 0) line("prompts             ", report.prompts_text());
  line("text                ",
       cat(format_bytes(report.source.text_bytes), " in ", format_count(report.source.files), " files"));
  line("bytes a token       ",
       format_fixed(static_cast<double>(report.source.text_bytes) / static_cast<double>(report.tokens), 2));
  line("speed               ", cat(speed_of(report), " in ", format_fixed(report.seconds, 1), " s on ",
                                   at::get_num_threads(), " threads"));
  line("files left out      ", format_count(report.source.left_out_files));
  for (const std::string& file : report.source.left_out_lines()) line("  ", file);
  line("hidden, skipped     ", format_count(report.source.hidden_entries));
  for (const std::string& text : report.changed_text_lines()) line("", text);
  std::cout << std::flush;
}

}  // namespace

void refuse_to_replace(const std::filesystem::path& output) {
  for (const std::filesystem::path& file : {indexed_dataset_idx(output), indexed_dataset_bin(output)}) {
    std::error_code error;
    if (std::filesystem::exists(file, error))
      throw ConfigError(cat("--output ", output.string(), ": ", file.string(),
                            " is there already; choose another name, or add --overwrite to replace the set"));
  }
}

void TokenizeFlags::declare(OptionList& list) {
  list.text("tokenizer", tokenizer,
            "a folder with tokenizer.json, the file, or org/name in the Hugging Face cache")
      .required();
  list.paths("input", inputs, "folders of text or source code, .txt files, .jsonl files (a document a line)")
      .required();
  list.path("output", output, "PREFIX of the two files").required();
  list.flag("overwrite", overwrite, "replace a set of that name");
  list.text(
      "field", corpus.field,
      "the field of a .jsonl line that holds the text; a line without it may have prompt and completion");
  list.choice("on_bad_record", corpus.on_bad_record, kOnBadRecordHelp);
  list.flag("no_append_eos", corpus.append_end_of_text, false,
            "do not end documents with the end-of-text token");
  list.count("threads", threads, from_to(0, kMostThreads), "threads; 0: as many as the machine has cores");
}

int run_tokenize(const std::vector<std::string>& arguments) {
  TokenizeFlags flags;
  OptionParser parser("tokenize",
                      "Turns text into a tokenized set, Megatron-LM's PREFIX.bin and PREFIX.idx.");
  flags.declare(parser);
  if (!parser.parse(arguments)) return 0;
  refuse_flags_of_lines(parser, flags.inputs, "field");

  if (!flags.overwrite) refuse_to_replace(flags.output);
  if (flags.threads > 0) at::set_num_threads(static_cast<int>(flags.threads));
  const Tokenizer tokenizer = Tokenizer::load(find_tokenizer(flags.tokenizer));
  constexpr int kProgressColumns = 60;
  const bool live = terminal_columns(STDERR_FILENO) >= kProgressColumns;
  const CorpusReport report =
      tokenize_corpus(tokenizer, flags.inputs, flags.output, flags.corpus,
                      live ? print_progress : std::function<void(const CorpusReport&)>());
  if (live) std::cerr << "\r\x1b[K";
  print_report(report, flags.output);
  return 0;
}

}  // namespace trireme
