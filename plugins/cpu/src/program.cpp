#include "program.h"

#include <algorithm>

namespace jackfield {

constexpr int64_t SMALL = 64 * 1024;  // elements below which a second worker costs more than it gives

int workers_of(const Kernel& kernel, const Step& step, int most) {
    if (most <= 1) return 1;
    const int wanted = kernel.workers ? kernel.workers(step, most) : (step.out.size() < SMALL ? 1 : most);
    return std::clamp(wanted, 1, most);
}

int64_t scratch_of(const Kernel& kernel, const Step& step, int most) {
    return kernel.scratch ? kernel.scratch(step, workers_of(kernel, step, most)) : 0;
}

Program::Program(std::shared_ptr<Pool> pool, std::vector<std::unique_ptr<BoundStep>> steps, char* scratch,
                 int64_t scratch_nbytes)
    : pool_(std::move(pool)),
      steps_(std::move(steps)),
      faults_(steps_.size()),
      scratch_(scratch),
      scratch_nbytes_(scratch_nbytes) {
    for (size_t i = 0; i < steps_.size(); ++i) {
        BoundStep& bound = *steps_[i];
        bound.step.fault = &faults_[i];
        if (bound.step.out.size() == 0) continue;  // nothing to make: never launched
        if (bound.kernel->bind) bound.kernel->bind(bound.step);
        const int workers = workers_of(*bound.kernel, bound.step, pool_->size());
        team_ = std::max(team_, workers);
        if (workers == 1 && !segments_.empty() && segments_.back().workers == 1 && segments_.back().end == i)
            segments_.back().end = i + 1;
        else
            segments_.push_back({i, i + 1, workers});
    }
}

void Program::run() {
    pool_->run(team_, [this](int index) { work(index); });
    for (const Fault& fault : faults_) faulty_ |= fault.code != FAULT_NONE;
}

static void meet(void* pool, int32_t workers) { static_cast<Pool*>(pool)->barrier(workers).wait(); }
static int64_t take(void* pool) { return static_cast<Pool*>(pool)->counter().fetch_add(1, std::memory_order_relaxed); }

void Program::work(int index) {
    Pool& pool = *pool_;
    for (size_t s = 0; s < segments_.size(); ++s) {
        const Segment& segment = segments_[s];
        if (index < segment.workers) {
            Team team{index, segment.workers, scratch_, scratch_nbytes_, &pool, meet, take};
            for (size_t i = segment.begin; i < segment.end; ++i) {
                if (segment.workers == 1) pool.counter().store(0, std::memory_order_relaxed);
                const BoundStep& bound = *steps_[i];
                bound.kernel->run(bound.step, team);
            }
        }
        if (team_ > 1 && s + 1 < segments_.size())
            pool.barrier(team_).wait([&pool] { pool.counter().store(0, std::memory_order_relaxed); });
    }
}

const BoundStep* Program::take_fault(Fault* fault) {
    const BoundStep* first = nullptr;
    for (size_t i = 0; i < faults_.size(); ++i) {
        if (faults_[i].code != FAULT_NONE && !first) {
            first = steps_[i].get();
            *fault = faults_[i];
        }
        faults_[i] = Fault{};
    }
    faulty_ = false;
    return first;
}

}  // namespace jackfield
