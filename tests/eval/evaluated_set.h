// A small model and a set of documents, which ranks evaluate together.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include <gtest/gtest.h>

#include "trireme/comm/thread_world.h"
#include "trireme/data/held_out_split.h"
#include "trireme/data/indexed_dataset_writer.h"
#include "trireme/engine/assemble.h"
#include "trireme/eval/rank_rows.h"

#include "tests/engine/tiny_model.h"

namespace trireme::testing {

class EvaluatedSet : public ::testing::Test {
 protected:
  static constexpr int64_t kVocabulary = 70;

  struct Document {
    int tokens = 0;
    int prompt_tokens = 0;
  };
  // Of one rank.
  struct Rows {
    std::shared_ptr<IndexedDataset> set;
    LoaderOptions settings;

    EvaluationLoader loader() const { return EvaluationLoader(set, whole_set(*set), settings); }
  };

  explicit EvaluatedSet(const std::vector<Document>& documents) {
    write_tiny_model(folder_.path() / "model", tiny_llama_config());
    IndexedDatasetWriter writer(folder_.path() / "set", kVocabulary);
    int32_t next = 0;
    for (const Document& document : documents) {
      std::vector<int32_t> ids;
      ids.reserve(static_cast<size_t>(document.tokens));
      for (int i = 0; i < document.tokens; ++i, ++next) ids.push_back(next * next % kVocabulary);
      writer.add_document(ids, document.prompt_tokens);
    }
    writer.finish();
  }

  // Calls `evaluate` on every rank, in threads.
  void on_ranks(int ranks, int ulysses, int ring, int64_t row_tokens, Packing packing,
                const std::function<void(Engine& engine, const Rows& rows)>& evaluate) const {
    run_ranks_as_threads(ranks, [&](World& world) {
      EngineOptions options;
      options.ulysses = ulysses;
      options.ring = ring;
      const auto engine = assemble(world, folder_.path() / "model", options);
      LoaderOptions settings;
      settings.packing.kind = packing;
      settings.sequence_tokens = row_tokens;
      evaluate(*engine, {std::make_shared<IndexedDataset>(folder_.path() / "set"),
                         rows_of_rank(settings, engine->mesh())});
    });
  }

  TemporaryFolder folder_;
};

}  // namespace trireme::testing
