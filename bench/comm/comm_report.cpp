#include "bench/comm/comm_report.h"

#include <algorithm>

#include "trireme/base/error.h"
#include "trireme/base/sizes.h"
#include "trireme/engine/engine_options.h"

namespace trireme {
namespace {

std::string mebibytes(int64_t bytes) {
  return format_fixed(static_cast<double>(bytes) / (1 << 20), 3);
}

using Row = std::vector<std::string>;

// The first column is aligned to the left, numbers to the right.
std::string aligned(const std::vector<Row>& rows) {
  std::vector<size_t> widths(rows.front().size(), 0);
  for (const Row& row : rows)
    for (size_t i = 0; i < row.size(); ++i) widths[i] = std::max(widths[i], row[i].size());
  std::string text;
  for (const Row& row : rows) {
    for (size_t i = 0; i < row.size(); ++i) {
      const std::string space(widths[i] - row[i].size(), ' ');
      text += i == 0 ? row[i] + space : "  " + space + row[i];
    }
    text += "\n";
  }
  return text;
}

std::string what_was_run(const CommReport& report) {
  const ExchangeRateOptions& options = report.options;
  return cat("one layer's attention and exchanges: ", format_count(options.tokens), " tokens, batch ",
             options.batch, ", ", options.heads, " query and ", options.kv_heads, " key/value heads of ",
             options.head_dim, ", hidden ", format_count(options.hidden), ", ", dtype_name(options.dtype),
             options.head_chunks > 1 ? cat(", ", options.head_chunks, " head chunks") : std::string(), ", ",
             report.ranks, report.ranks == 1 ? " rank" : " ranks", report.threads ? " (threads)" : "", "\n");
}

double model_seconds(const CommReport& report, const ExchangeRate& rate) {
  return report.link.speed.seconds(static_cast<double>(rate.calls()),
                                   static_cast<double>(rate.most_sent.both()));
}

std::string methods_table(const CommReport& report) {
  std::vector<Row> rows{{"method", "exchanges", "fwd MiB", "formula", "bwd MiB", "formula", "exchange s",
                         "least", "most", "model s", "layer s", "share"}};
  for (const ExchangeRate& rate : report.methods)
    rows.push_back({rate.shape.description(), cat(rate.forward_calls, "+", rate.backward_calls),
                    mebibytes(rate.most_sent.forward), mebibytes(rate.most_formula.forward),
                    mebibytes(rate.most_sent.backward), mebibytes(rate.most_formula.backward),
                    format_fixed(rate.exchange_seconds.median, 5),
                    format_fixed(rate.exchange_seconds.least, 5), format_fixed(rate.exchange_seconds.most, 5),
                    format_fixed(model_seconds(report, rate), 5), format_fixed(rate.layer_seconds.median, 5),
                    format_fixed(100 * rate.exchange_share(), 1) + "%"});
  return aligned(rows) +
         "exchanges forward+backward; MiB sent by the rank that sends most: each rank's count, in bytes, is "
         "its\n"
         "formula's; model: latency and bandwidth as above; seconds of the slowest rank, waiting included\n";
}

std::string weak_scaling_table(const CommReport& report) {
  Row head{"ranks", "tokens"};
  for (const ExchangeRate& rate : report.methods) head.emplace_back(name_of(rate.shape.method));
  head.emplace_back("known by");
  std::vector<Row> rows{head};
  for (const WeakScalingRow& weak : report.weak_scaling) {
    Row row{cat(weak.ranks), format_count(weak.tokens)};
    for (const ExchangeBytes& sent : weak.sent) row.push_back(mebibytes(sent.both()));
    row.emplace_back(weak.measured ? "count" : "formula only");
    rows.push_back(row);
  }
  return "sequence and ranks grow together: MiB that a rank sends in a layer, forward and backward\n" +
         aligned(rows);
}

Json json_of(const ExchangeBytes& bytes) {
  return {{"forward", bytes.forward}, {"backward", bytes.backward}};
}

Json json_of(const Spread& spread) {
  return {{"median", spread.median}, {"least", spread.least}, {"most", spread.most}};
}

}  // namespace

std::string text_of(const CommReport& report) {
  std::string text = what_was_run(report);
  for (const std::string& method : report.left_out) text += "left out: " + method + "\n";
  if (report.ranks == 1)
    text +=
        "one rank: nothing travels. Use trireme launch --nproc_per_node P -- bench comm, or "
        "--ranks_as_threads P\n";
  else
    text +=
        cat("an all-to-all here: ", format_fixed(report.link.speed.latency_seconds * 1e6, 1),
            " us + bytes / ", format_fixed(report.link.speed.bytes_per_second / 1e9, 3), " GB/s, fitted to ",
            report.link.timed.size(), " sizes from ", format_bytes(report.link.timed.front().sent_bytes),
            " to ", format_bytes(report.link.timed.back().sent_bytes), " a rank\n");
  text += "\n" + methods_table(report);
  if (report.ranks > 1) text += "\n" + weak_scaling_table(report);
  return text;
}

Json json_of(const CommReport& report) {
  const ExchangeRateOptions& options = report.options;
  Json line = {{"what", "trireme bench comm"},
               {"ranks", report.ranks},
               {"ranks_are_threads", report.threads},
               {"tokens", options.tokens},
               {"batch", options.batch},
               {"heads", options.heads},
               {"kv_heads", options.kv_heads},
               {"head_dim", options.head_dim},
               {"hidden", options.hidden},
               {"dtype", dtype_name(options.dtype)},
               {"device", options.device.str()},
               {"head_chunks", options.head_chunks},
               {"repeats", options.repeats},
               {"left_out", report.left_out},
               {"methods", Json::array()},
               {"weak_scaling", Json::array()}};
  if (report.ranks > 1) {
    line["link"] = {{"latency_s", report.link.speed.latency_seconds},
                    {"bytes_per_s", report.link.speed.bytes_per_second},
                    {"timed", Json::array()}};
    for (const TimedExchange& one : report.link.timed)
      line["link"]["timed"].push_back({{"sent_bytes", one.sent_bytes}, {"s", one.seconds}});
  }
  for (const ExchangeRate& rate : report.methods)
    line["methods"].push_back(
        {{"method", name_of(rate.shape.method)},
         {"description", rate.shape.description()},
         {"ulysses", rate.shape.ulysses},
         {"ring", rate.shape.ring},
         {"exchanges", {{"forward", rate.forward_calls}, {"backward", rate.backward_calls}}},
         {"sent_bytes", json_of(rate.most_sent)},
         {"formula_bytes", json_of(rate.most_formula)},
         {"exchange_s", json_of(rate.exchange_seconds)},
         {"model_s", model_seconds(report, rate)},
         {"layer_s", json_of(rate.layer_seconds)},
         {"exchange_share", rate.exchange_share()}});
  for (const WeakScalingRow& weak : report.weak_scaling) {
    Json row = {{"ranks", weak.ranks}, {"tokens", weak.tokens}, {"measured", weak.measured}};
    for (size_t i = 0; i < weak.sent.size(); ++i)
      row["sent_bytes"][name_of(report.methods[i].shape.method)] = weak.sent[i].both();
    line["weak_scaling"].push_back(row);
  }
  return line;
}

}  // namespace trireme
