#include "program.h"

#include <algorithm>

namespace jackfield {

constexpr int64_t SMALL = 64 * 1024;  // elements below which a second worker costs more than it gives

Bound::Bound(const Fused* fused, std::vector<std::unique_ptr<BoundStep>> steps)
    : fused_(fused), steps_(std::move(steps)) {
    ops_.reserve(steps_.size());
    list_.reserve(steps_.size());
    for (const auto& bound : steps_) {
        ops_.push_back(bound->op.c_str());
        list_.push_back(&bound->step);
    }
    chain_ = {ops_.data(), list_.data(), int32_t(list_.size())};
}

int Bound::workers(int most) const {
    if (most <= 1) return 1;
    if (fused_) return std::clamp<int>(fused_->workers(chain_, most), 1, most);
    const BoundStep& bound = *steps_.front();
    const auto wish = bound.kernel->workers;
    return std::clamp<int>(wish ? wish(bound.step, most) : (bound.step.out.size() < SMALL ? 1 : most), 1, most);
}

int64_t Bound::scratch(int most) const {
    if (fused_) return fused_->scratch ? fused_->scratch(chain_, workers(most)) : 0;
    const BoundStep& bound = *steps_.front();
    return bound.kernel->scratch ? bound.kernel->scratch(bound.step, workers(most)) : 0;
}

void Bound::bind() {
    if (fused_) {
        if (fused_->bind) fused_->bind(chain_);
    } else if (steps_.front()->kernel->bind) {
        steps_.front()->kernel->bind(steps_.front()->step);
    }
}

Program::Program(std::shared_ptr<Pool> pool, std::vector<std::unique_ptr<Bound>> groups, char* scratch,
                 int64_t scratch_nbytes)
    : pool_(std::move(pool)), groups_(std::move(groups)), scratch_(scratch), scratch_nbytes_(scratch_nbytes) {
    for (const auto& group : groups_)
        for (const auto& bound : group->steps()) steps_.push_back(bound.get());
    faults_.resize(steps_.size());
    for (size_t i = 0; i < steps_.size(); ++i) steps_[i]->step.fault = &faults_[i];
    for (size_t i = 0; i < groups_.size(); ++i) {
        if (groups_[i]->empty()) continue;  // nothing to make: never launched
        groups_[i]->bind();
        const int workers = groups_[i]->workers(pool_->size());
        team_ = std::max(team_, workers);
        if (workers == 1 && !segments_.empty() && segments_.back().workers == 1 && segments_.back().end == i)
            segments_.back().end = i + 1;
        else
            segments_.push_back({i, i + 1, workers});
    }
    for (const Segment& segment : segments_) workers_.push_back(segment.workers);
    segments = segments_.size();
    parts = workers_.data();
}

void Program::run() {
    pool_->run(team_, *this);
    for (const Fault& fault : faults_) faulty_ |= fault.code != FAULT_NONE;
}

namespace {

struct Meeting {  // what Team.pool points at
    Pool& pool;
    size_t segment;
    std::atomic<int64_t>& counter;
};

void meet(void* at, int32_t workers, bool last) {
    const Meeting& meeting = *static_cast<Meeting*>(at);
    meeting.pool.meet(meeting.segment, workers, last);
}
int64_t take(void* at) { return static_cast<Meeting*>(at)->counter.fetch_add(1, std::memory_order_relaxed); }

}  // namespace

void Program::make(size_t at, int part) const {
    const Segment& segment = segments_[at];
    if (part == 0) pool_->counter(at + 1).store(0, std::memory_order_relaxed);  // the next segment's, unused so far
    Meeting meeting{*pool_, at, pool_->counter(at)};
    Team team{part, segment.workers, scratch_, scratch_nbytes_, &meeting, meet, take};
    for (size_t i = segment.begin; i < segment.end; ++i) {
        if (segment.workers == 1) meeting.counter.store(0, std::memory_order_relaxed);
        groups_[i]->run(team);
    }
}

const BoundStep* Program::take_fault(Fault* fault) {
    const BoundStep* first = nullptr;
    for (size_t i = 0; i < faults_.size(); ++i) {
        if (faults_[i].code != FAULT_NONE && !first) {
            first = steps_[i];
            *fault = faults_[i];
        }
        faults_[i] = Fault{};
    }
    faulty_ = false;
    return first;
}

}  // namespace jackfield
