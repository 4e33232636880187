#include "trireme/launch/backlog_stream.h"

#include <cerrno>
#include <condition_variable>
#include <mutex>
#include <poll.h>
#include <signal.h>
#include <streambuf>
#include <string>
#include <thread>
#include <unistd.h>
#include <utility>

namespace trireme {

class BacklogStream::Backlog : public std::streambuf {
 public:
  Backlog(int descriptor, size_t most_bytes) : descriptor_(descriptor), most_bytes_(most_bytes) {
    sigset_t all, before;
    ::sigfillset(&all);
    ::pthread_sigmask(SIG_SETMASK, &all, &before);
    writer_ = std::thread([this] { write_all(); });
    ::pthread_sigmask(SIG_SETMASK, &before, nullptr);
  }

  ~Backlog() override {
    {
      const std::lock_guard<std::mutex> lock(mutex_);
      ended_ = true;
    }
    news_.notify_all();
    writer_.join();
  }

 protected:
  std::streamsize xsputn(const char* text, std::streamsize size) override {
    std::unique_lock<std::mutex> lock(mutex_);
    news_.wait(lock, [&] { return waiting_.size() < most_bytes_ || reader_gone_; });
    if (reader_gone_) return 0;
    waiting_.append(text, static_cast<size_t>(size));
    news_.notify_all();
    return size;
  }

  int_type overflow(int_type character) override {
    if (traits_type::eq_int_type(character, traits_type::eof())) return traits_type::not_eof(character);
    const char one = traits_type::to_char_type(character);
    return xsputn(&one, 1) == 1 ? character : traits_type::eof();
  }

 private:
  void write_all() {
    for (;;) {
      std::unique_lock<std::mutex> lock(mutex_);
      news_.wait(lock, [&] { return !waiting_.empty() || ended_; });
      if (waiting_.empty()) return;
      const std::string text = std::exchange(waiting_, {});
      lock.unlock();
      news_.notify_all();
      if (write_whole(text)) continue;
      lock.lock();
      reader_gone_ = true;
      waiting_.clear();
      news_.notify_all();
    }
  }

  bool write_whole(const std::string& text) const {
    for (size_t written = 0; written < text.size();) {
      const ssize_t count = ::write(descriptor_, text.data() + written, text.size() - written);
      if (count > 0) written += static_cast<size_t>(count);
      if (count >= 0 || errno == EINTR) continue;
      if (errno == ENOSPC || errno == EDQUOT) return true;  // there may be room for what comes later
      if (errno != EAGAIN) return false;
      pollfd room{descriptor_, POLLOUT, 0};
      ::poll(&room, 1, -1);
    }
    return true;
  }

  int descriptor_;
  size_t most_bytes_;
  std::mutex mutex_;
  std::condition_variable news_;
  std::string waiting_;
  bool ended_ = false, reader_gone_ = false;
  std::thread writer_;
};

BacklogStream::BacklogStream(int descriptor, size_t most_bytes)
    : std::ostream(nullptr), backlog_(std::make_unique<Backlog>(descriptor, most_bytes)) {
  rdbuf(backlog_.get());
}

BacklogStream::~BacklogStream() = default;

}  // namespace trireme
