#include "trireme/cli/tokenize.h"

#include <algorithm>
#include <array>
#include <cstdio>
#include <filesystem>
#include <functional>
#include <iostream>
#include <unistd.h>

#include <ATen/Parallel.h>

#include "trireme/base/error.h"
#include "trireme/base/sizes.h"
#include "trireme/cli/option_parser.h"
#include "trireme/data/indexed_dataset.h"
#include "trireme/data/tokenize_corpus.h"

namespace trireme {

namespace {

std::string decimal(double value, const char* format) {
  std::array<char, 64> text{};
  std::snprintf(text.data(), text.size(), format, value);
  return text.data();
}

double megabytes_per_second(const CorpusReport& report) {
  return static_cast<double>(report.source.text_bytes) / 1e6 / std::max(report.seconds, 1e-9);
}

void print_progress(const CorpusReport& report) {
  std::cerr << "\r" << format_count(report.documents) << " documents, " << format_count(report.tokens)
            << " tokens, " << decimal(megabytes_per_second(report), "%.1f MB/s") << std::flush;
}

void print_report(const CorpusReport& report, const std::filesystem::path& output) {
  const auto line = [](const char* name, const std::string& value) {
    std::cout << "  " << name << value << "\n";
  };
  std::cout << "wrote " << indexed_dataset_bin(output).string() << " and "
            << indexed_dataset_idx(output).string() << "\n";
  line("documents           ", format_count(report.documents));
  line("tokens              ", format_count(report.tokens));
  line("text                ",
       cat(format_bytes(report.source.text_bytes), " in ", format_count(report.source.files), " files"));
  line("bytes a token       ",
       decimal(static_cast<double>(report.source.text_bytes) / static_cast<double>(report.tokens), "%.2f"));
  line("speed               ",
       cat(decimal(megabytes_per_second(report), "%.1f MB/s"), " in ", decimal(report.seconds, "%.1f s"),
           " on ", at::get_num_threads(), " threads"));
  line("binary, skipped     ", format_count(report.source.binary_files));
  line("hidden, skipped     ", format_count(report.source.hidden_entries));
  line("empty documents     ", format_count(report.source.empty_documents));
  if (report.replaced_documents > 0)
    line("not valid UTF-8     ",
         cat(format_count(report.replaced_documents), " documents; the wrong bytes became U+FFFD"));
  std::cout << std::flush;
}

}  // namespace

int run_tokenize(const std::vector<std::string>& arguments) {
  std::filesystem::path tokenizer_path, output;
  std::vector<std::filesystem::path> inputs;
  CorpusOptions options;
  bool no_append_eos = false;
  int64_t threads = 0;
  OptionParser parser("tokenize",
                      "Turns text into a tokenized set, Megatron-LM's PREFIX.bin and PREFIX.idx.");
  parser.path("tokenizer", tokenizer_path, "a folder with tokenizer.json, or the file");
  parser.required("tokenizer");
  parser.paths("input", inputs,
               "folders of text or source code, .txt files, .jsonl files (a document a line)");
  parser.required("input");
  parser.path("output", output, "PREFIX of the two files");
  parser.required("output");
  parser.text("field", options.field, "the field of a .jsonl line that holds the text");
  parser.flag("no_append_eos", no_append_eos, "do not end documents with the end-of-text token");
  parser.count("threads", threads, "0: as many as the machine has cores");
  if (!parser.parse(arguments)) return 0;

  options.append_end_of_text = !no_append_eos;
  if (threads > 0) at::set_num_threads(static_cast<int>(threads));
  const Tokenizer tokenizer = Tokenizer::load(tokenizer_path);
  const bool live = isatty(STDERR_FILENO) == 1;
  const CorpusReport report = tokenize_corpus(
      tokenizer, inputs, output, options, live ? print_progress : std::function<void(const CorpusReport&)>());
  if (live) std::cerr << "\r\x1b[K";
  print_report(report, output);
  return 0;
}

}  // namespace trireme
