// Messages as PyTorch's versions, its libraries, launchers and Trireme word them, and what is read of each.
#include "trireme/plan/memory_error.h"

#include <random>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "trireme/base/error.h"
#include "trireme/device/memory_advice.h"

#include "tests/support/error_message.h"

namespace trireme::testing {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

// Of a message, as doubles.
constexpr double kKibi = 0x1p10, kMebi = 0x1p20, kGibi = 0x1p30;

MemoryError read(const std::string& text) {
  return read_memory_error(text, "log.txt");
}

void expect_bytes(const std::optional<int64_t>& bytes, double expected) {
  ASSERT_TRUE(bytes);
  EXPECT_EQ(*bytes, static_cast<int64_t>(expected));
}

// 1.0 to 1.3: "cached" is what no tensor uses.
TEST(MemoryError, torch_1_0) {
  const MemoryError error = read(
      "RuntimeError: CUDA out of memory. Tried to allocate 1.25 GiB (GPU 3; 31.50 GiB total capacity; 28.75 "
      "GiB already "
      "allocated; 60.50 MiB free; 912.00 KiB cached)");
  EXPECT_EQ(error.kind, MemoryErrorKind::torch_allocator);
  EXPECT_EQ(error.space, MemorySpace::device);
  EXPECT_EQ(error.gpu, 3);
  expect_bytes(error.asked, 1.25 * kGibi);
  expect_bytes(error.capacity, 31.5 * kGibi);
  expect_bytes(error.allocated, 28.75 * kGibi);
  expect_bytes(error.free, 60.5 * kMebi);
  expect_bytes(error.unallocated, 912 * kKibi);
}

// 1.4 to 1.9
TEST(MemoryError, torch_1_8) {
  const MemoryError error = read(
      "  File \"train.py\", line 7, in <module>\n    loss.backward()\nRuntimeError: CUDA out of memory. "
      "Tried to allocate "
      "2.00 GiB (GPU 0; 79.15 GiB total capacity; 70.00 GiB already allocated; 0 bytes free; 77.50 GiB "
      "reserved in total "
      "by PyTorch)\n");
  EXPECT_EQ(error.gpu, 0);
  expect_bytes(error.asked, 2 * kGibi);
  expect_bytes(error.free, 0);
  expect_bytes(error.allocated, 70 * kGibi);
  expect_bytes(error.unallocated, 7.5 * kGibi);
  ASSERT_TRUE(error.asked_by);
  EXPECT_EQ(error.asked_by->file, "train.py");
  EXPECT_EQ(error.asked_by->line, 7);
  EXPECT_EQ(error.asked_by->code, "loss.backward()");
}

// 1.10 to 1.12 add advice; 1.13 and 2.0 another type.
TEST(MemoryError, torch_1_13_and_2_0) {
  for (const char* type : {"RuntimeError", "torch.cuda.OutOfMemoryError", "OutOfMemoryError"}) {
    const MemoryError error = read(cat(type,
                                       ": CUDA out of memory. Tried to allocate 172.00 MiB (GPU 1; 79.25 GiB "
                                       "total capacity; 73.75 GiB already "
                                       "allocated; 12.25 MiB free; 9.00 GiB allowed; 76.75 GiB reserved in "
                                       "total by PyTorch) If reserved memory is "
                                       ">> allocated memory try setting max_split_size_mb to avoid "
                                       "fragmentation.  See documentation for Memory "
                                       "Management and PYTORCH_CUDA_ALLOC_CONF"));
    EXPECT_EQ(error.gpu, 1);
    expect_bytes(error.asked, 172 * kMebi);
    expect_bytes(error.free, 12.25 * kMebi);
    expect_bytes(error.allowed, 9 * kGibi);
    expect_bytes(error.unallocated, 3 * kGibi);
  }
}

// 2.1 and 2.2 write "capacty".
TEST(MemoryError, torch_2_1) {
  const MemoryError error = read(
      "torch.cuda.OutOfMemoryError: CUDA out of memory. Tried to allocate 3.00 GiB. GPU 2 has a total "
      "capacty of 23.75 GiB of "
      "which 1.50 GiB is free. Including non-PyTorch memory, this process has 20.75 GiB memory in use. Of "
      "the allocated "
      "memory 12.25 GiB is allocated by PyTorch, and 4.75 GiB is reserved by PyTorch but unallocated. If "
      "reserved but "
      "unallocated memory is large try setting max_split_size_mb to avoid fragmentation.");
  EXPECT_EQ(error.gpu, 2);
  expect_bytes(error.capacity, 23.75 * kGibi);
  expect_bytes(error.free, 1.5 * kGibi);
  expect_bytes(error.process, 20.75 * kGibi);
  expect_bytes(error.allocated, 12.25 * kGibi);
  expect_bytes(error.unallocated, 4.75 * kGibi);
  EXPECT_FALSE(error.others);
}

// 2.3 and 2.4; in a container the process is one of those listed by number.
TEST(MemoryError, torch_2_3_in_a_container) {
  const MemoryError error = read(
      "torch.cuda.OutOfMemoryError: CUDA out of memory. Tried to allocate 86.00 MiB. GPU 0 has a total "
      "capacity of 23.50 GiB of "
      "which 264.00 MiB is free. Process 20862 has 419.00 MiB memory in use. Process 27973 has 14.75 GiB "
      "memory in use. "
      "Process 31001 has 8.00 GiB memory in use. Of the allocated memory 7.50 GiB is allocated by PyTorch, "
      "and 40.00 MiB is "
      "reserved by PyTorch but unallocated.");
  expect_bytes(error.process, 8 * kGibi);
  expect_bytes(error.others, 14.75 * kGibi + 419 * kMebi);
}

// 2.5 to 2.8, on a rank of torchrun, with another rank's message after it.
TEST(MemoryError, torch_2_6_of_a_rank) {
  const MemoryError error = read(
      "[rank5]: Traceback (most recent call last):\n"
      "[rank5]:   File \"/srv/train.py\", line 88, in <module>\n"
      "[rank5]:     main()\n"
      "[rank6]:   File \"/srv/other.py\", line 1, in <module>\n"
      "[rank5]:   File \"/venv/lib/python3.12/site-packages/transformers/models/llama/modeling_llama.py\", "
      "line 155, in forward\n"
      "[rank5]:     down_proj = self.down_proj(self.act_fn(self.gate_proj(x)) * self.up_proj(x))\n"
      "[rank5]:                                ^^^^^^^^^^^\n"
      "[rank5]:   File \"/venv/lib/python3.12/site-packages/torch/nn/functional.py\", line 2380, in silu\n"
      "[rank5]:     return torch._C._nn.silu(input)\n"
      "[rank5]: torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 1.75 GiB. GPU 5 has a total "
      "capacity of 79.10 GiB\n"
      "[rank5]: of which 1.00 GiB is free. Including non-PyTorch memory, this process has 78.00 GiB memory "
      "in use. Of the\n"
      "[rank5]: allocated memory 70.50 GiB is allocated by PyTorch, with 46.00 MiB allocated in private "
      "pools (e.g., CUDA "
      "Graphs), and 5.25 GiB is reserved by PyTorch but unallocated.\n"
      "[rank6]: torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 9.00 GiB. GPU 6 has a total "
      "capacity of 10.00 GiB\n");
  EXPECT_EQ(error.rank, 5);
  EXPECT_EQ(error.gpu, 5);
  expect_bytes(error.asked, 1.75 * kGibi);
  expect_bytes(error.capacity, 79.1 * kGibi);
  expect_bytes(error.free, kGibi);
  expect_bytes(error.private_pools, 46 * kMebi);
  expect_bytes(error.unallocated, 5.25 * kGibi);
  ASSERT_TRUE(error.asked_by);
  EXPECT_TRUE(error.asked_by->file.ends_with("modeling_llama.py"));
  EXPECT_EQ(error.asked_by->line, 155);
  EXPECT_EQ(error.asked_by->function, "forward");
  EXPECT_TRUE(error.asked_by->code.starts_with("down_proj = "));
}

// 2.9 to 2.11 name PYTORCH_ALLOC_CONF, and HIP and XPU speak alike.
TEST(MemoryError, torch_2_11_and_other_devices) {
  for (const char* device : {"CUDA", "HIP", "XPU"}) {
    const MemoryError error = read(
        cat("torch.OutOfMemoryError: ", device,
            " out of memory. Tried to allocate 2.00 MiB. GPU 7 has a total capacity of 287.50 GiB "
            "of which 203.50 GiB is free. 70.00 GiB allowed; Of the allocated memory 68.50 GiB is allocated "
            "by PyTorch, and 14.75 GiB "
            "is reserved by PyTorch but unallocated. If reserved but unallocated memory is large try setting "
            "PYTORCH_ALLOC_CONF=expandable_segments:True to avoid fragmentation."));
    EXPECT_EQ(error.gpu, 7);
    expect_bytes(error.free, 203.5 * kGibi);
    expect_bytes(error.allowed, 70 * kGibi);
    expect_bytes(error.allocated, 68.5 * kGibi);
    EXPECT_FALSE(error.process);
  }
}

TEST(MemoryError, a_size_that_torch_cannot_say) {
  const MemoryError error =
      read("torch.OutOfMemoryError: CUDA out of memory. Tried to allocate more than 1EB memory.");
  EXPECT_EQ(error.kind, MemoryErrorKind::torch_allocator);
  EXPECT_FALSE(error.asked);
}

TEST(MemoryError, calls_without_figures) {
  EXPECT_EQ(read("RuntimeError: CUDA error: out of memory\nCUDA kernel errors might be").kind,
            MemoryErrorKind::cuda_call);
  EXPECT_EQ(read("torch.AcceleratorError: CUDA error: out of memory").kind, MemoryErrorKind::cuda_call);
  EXPECT_EQ(read("RuntimeError: cuda runtime error (2) : out of memory at "
                 "/pytorch/aten/src/THC/generic/THCStorage.cu:58")
                .kind,
            MemoryErrorKind::cuda_call);
  EXPECT_EQ(
      read("RuntimeError: CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`").kind,
      MemoryErrorKind::gpu_library);
  for (const char* status :
       {"CUDNN_STATUS_ALLOC_FAILED", "CUDNN_STATUS_INTERNAL_ERROR_DEVICE_ALLOCATION_FAILED"})
    EXPECT_EQ(read(cat("RuntimeError: cuDNN error: ", status)).kind, MemoryErrorKind::gpu_library);
}

TEST(MemoryError, nccl_names_its_device_and_bytes) {
  const MemoryError failure =
      read("gn3:18451:18451 [3] enqueue.cc:1085 NCCL WARN Cuda failure 'out of memory'");
  EXPECT_EQ(failure.kind, MemoryErrorKind::nccl);
  EXPECT_EQ(failure.gpu, 3);
  EXPECT_EQ(failure.space, MemorySpace::device);
  const MemoryError error =
      read("gn3:28:48 [1] include/alloc.h:185 NCCL WARN Failed to CUDA calloc 6291456 bytes");
  EXPECT_EQ(error.kind, MemoryErrorKind::nccl);
  EXPECT_EQ(error.asked, 6291456);
  EXPECT_EQ(read("[rank0]: ncclUnhandledCudaError: Call to CUDA function failed.\n[rank0]: Last "
                 "error:\n[rank0]: Cuda failure 2 "
                 "'out of memory'")
                .rank,
            0);
  EXPECT_THROW(read("ncclUnhandledCudaError: Call to CUDA function failed. Last error: Cuda failure 999 "
                    "'unknown error'"),
               DataError);
}

// Pinning fails with the words of a call on the device: the code tells.
TEST(MemoryError, pinned_host_memory_is_told_from_the_devices) {
  const MemoryError error = read(
      "Traceback (most recent call last):\n"
      "  File \"/venv/site-packages/deepspeed/runtime/zero/stage_1_and_2.py\", line 485, in __init__\n"
      "    self.initialize_optimizer_states()\n"
      "  File \"/venv/site-packages/deepspeed/accelerator/cuda_accelerator.py\", line 217, in pin_memory\n"
      "    return tensor.pin_memory()\n"
      "RuntimeError: CUDA error: out of memory\n");
  EXPECT_EQ(error.kind, MemoryErrorKind::pinned_host);
  EXPECT_EQ(error.space, MemorySpace::host);
  ASSERT_TRUE(error.asked_by);
  EXPECT_EQ(error.asked_by->function, "pin_memory");
  EXPECT_EQ(read("RuntimeError: cuda runtime error (2) : out of memory at "
                 "/pytorch/aten/src/THC/THCCachingHostAllocator.cpp:278")
                .kind,
            MemoryErrorKind::pinned_host);
}

TEST(MemoryError, the_hosts_allocators) {
  const MemoryError error = read(
      "RuntimeError: [enforce fail at alloc_cpu.cpp:75] err == 0. DefaultCPUAllocator: can't allocate "
      "memory: you tried to allocate "
      "132426121216 bytes. Error code 12 (Cannot allocate memory)");
  EXPECT_EQ(error.kind, MemoryErrorKind::host_allocator);
  EXPECT_EQ(error.space, MemorySpace::host);
  EXPECT_EQ(error.asked, 132426121216);
  for (const char* text :
       {"terminate called after throwing an instance of 'std::bad_alloc'\n  what():  std::bad_alloc",
        "OSError: [Errno 12] Cannot allocate memory", "MemoryError\n"})
    EXPECT_EQ(read(text).space, MemorySpace::host) << text;
  expect_bytes(read("numpy.core._exceptions._ArrayMemoryError: Unable to allocate 1.50 GiB for an array with "
                    "shape (3,)")
                   .asked,
               1.5 * kGibi);
}

TEST(MemoryError, launchers_that_saw_a_rank_killed) {
  for (const char* text :
       {"[2026-01-01 00:00:00,000] [ERROR] [launch.py:321:sigkill_handler] ['python', '-u'] exits with "
        "return code = -9",
        "torch.distributed.elastic.multiprocessing.api:failed (exitcode: -9) local_rank: 4 (pid: 438) of "
        "binary: python",
        "  rank      : 4 (local_rank: 4)\n  exitcode  : -9 (pid: 36071)\n  traceback : Signal 9 (SIGKILL) "
        "received by PID 36071",
        "slurmstepd: error: Detected 1 oom_kill event in StepId=1.0", "Exit Code:    137", "Killed\n",
        "RuntimeError: DataLoader worker (pid 1562) is killed by signal: Killed."}) {
    const MemoryError error = read(text);
    EXPECT_EQ(error.kind, MemoryErrorKind::killed) << text;
    EXPECT_EQ(error.space, MemorySpace::host);
    const bool names_rank = std::string(text).find("rank: 4") != std::string::npos;
    EXPECT_EQ(error.rank, names_rank ? std::optional(4) : std::nullopt) << text;
  }
  EXPECT_EQ(
      read("[123.4] Out of memory: Killed process 99 (python) total-vm:9000kB, anon-rss:8192kB, file-rss:0kB")
          .process,
      8192 * 1024);
}

TEST(MemoryError, triremes_message_is_read_back) {
  MemoryBytes held;
  held[MemoryCategory::parameters] = int64_t{3} << 30;
  held[MemoryCategory::activations] = int64_t{40} << 30;
  for (const char* where : {"device", "host", "pinned host"}) {
    const MemoryError error = read(cat(
        "[rank 2] trireme: ConfigError: ",
        out_of_memory_message(where, MemoryCategory::attention, 1610612736, held, usual_memory_options())));
    EXPECT_EQ(error.kind, MemoryErrorKind::trireme);
    EXPECT_EQ(error.space, where == std::string("device") ? MemorySpace::device : MemorySpace::host);
    EXPECT_EQ(error.rank, 2);
    EXPECT_EQ(error.asked, 1610612736);
    EXPECT_EQ(error.category, MemoryCategory::attention);
    EXPECT_EQ(error.held, held);
    EXPECT_EQ(error.allocated, held.total());
  }
}

TEST(MemoryError, frames_of_ipython_and_rich) {
  const char* const kMessage =
      "\nOutOfMemoryError: CUDA out of memory. Tried to allocate 1.00 GiB. GPU 0 has a total capacity of "
      "2.00 GiB";
  const auto asked_by = [&](const std::string& text) { return read(text + kMessage).asked_by.value(); };
  TracebackFrame frame = asked_by(
      "File /opt/deepspeed/runtime/engine.py:1474, in DeepSpeedEngine.configure(self, basic)\n   1472     "
      "a\n-> 1474     "
      "optimizer = Stage3(\n   1475         self)\nFile /opt/torch/nn/linear.py:9, in forward(x)\n----> 9 y");
  EXPECT_EQ(frame.file, "/opt/deepspeed/runtime/engine.py");
  EXPECT_EQ(frame.line, 1474);
  EXPECT_EQ(frame.code, "optimizer = Stage3(");
  frame = asked_by(
      "/usr/lib/python3/modeling.py in bias(self, query)\n    324     x = 1\n--> 325             att = "
      "gather(\n    326");
  EXPECT_EQ(frame.file, "/usr/lib/python3/modeling.py");
  EXPECT_EQ(frame.line, 325);
  frame = asked_by(
      "\u2502 /mnt/envs/lib/deepspeed/runtime/zero/st \u2502\n\u2502 age_1_and_2.py:485 in __init__          "
      "  \u2502\n"
      "\u2502   484 \u2502   \u2502   see()                       \u2502\n\u2502 \u2771  485 \u2502   \u2502 "
      "  self.states()                  \u2502");
  EXPECT_EQ(frame.file, "/mnt/envs/lib/deepspeed/runtime/zero/stage_1_and_2.py");
  EXPECT_EQ(frame.line, 485);
  EXPECT_EQ(frame.function, "__init__");
  EXPECT_EQ(frame.code, "self.states()");
}

TEST(MemoryError, the_message_with_figures_wins_over_what_follows_from_it) {
  const MemoryError error = read(
      "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 1.00 GiB. GPU 0 has a total capacity of "
      "2.00 GiB of which 0 "
      "bytes is free.\nfailed (exitcode: -9) local_rank: 0 (pid: 1)\nNCCL WARN Cuda failure 'out of memory'");
  EXPECT_EQ(error.kind, MemoryErrorKind::torch_allocator);
}

TEST(MemoryError, other_texts_are_refused_by_name) {
  for (const char* text :
       {"", "\n\n", "Traceback (most recent call last):\nValueError: no", "out of memory", "loss 1.5"})
    EXPECT_THAT(message_of<DataError>([&] { read(text); }),
                AllOf(HasSubstr("log.txt"), HasSubstr("Tried to allocate")))
        << text;
}

// Cut, doubled and garbled texts are read or refused; nothing else happens.
TEST(MemoryError, garbage_is_read_or_refused) {
  const std::string seed =
      "[rank5]:   File \"/a.py\", line 155, in f\n[rank5]:     x = 1\n| /b.py:1 in g |\nFile /c.py:2, in "
      "h\n--> 3 y\nCUDA out of memory. "
      "Tried to allocate 1.75 GiB (GPU 5; 79.10 GiB total capacity; 1.00 GiB already allocated; 2.00 bytes "
      "free; 3.00 KiB cached) "
      "Process 5 has 1.00 GiB memory in use. this process has 2 GiB. out of host memory: asked for 1 B (5 "
      "bytes) more for tiles; "
      "this rank holds tiles 1.0 GiB. NCCL WARN Cuda failure 'out of memory' anon-rss:99kB";
  std::mt19937 random(7);
  for (int round = 0; round < 3000; ++round) {
    std::string text = seed;
    for (int change = 0; change < 8; ++change) {
      const size_t begin = random() % text.size(), length = random() % 20;
      switch (random() % 3) {
        case 0:
          text.erase(begin, length);
          break;
        case 1:
          text.insert(begin, text.substr(random() % text.size(), length));
          break;
        default:
          text[begin] = static_cast<char>(random());
      }
      if (text.empty()) text = "x";
    }
    try {
      const MemoryError error = read(text);
      for (const auto& bytes :
           {error.asked, error.capacity, error.free, error.allocated, error.process, error.others})
        EXPECT_GE(bytes.value_or(0), 0);
      EXPECT_LE(error.message.size(), 300u);
    } catch (const DataError&) {
    }
  }
}

}  // namespace
}  // namespace trireme::testing
