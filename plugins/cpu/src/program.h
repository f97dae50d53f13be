// A run with all addresses bound: a list of steps, cut into segments between which the workers meet.
#pragma once
#include "levels.h"
#include "pool.h"

#include <memory>
#include <string>
#include <vector>

namespace jackfield {

struct Attrs {
    std::vector<Attr> values;
    std::vector<std::string> texts;  // which values point at
};

struct BoundStep {
    const Kernel* kernel;
    Step step;
    std::vector<View> operands;          // what step.in points at
    std::shared_ptr<const Attrs> attrs;  // what step.attr points at; steps of one program share equal ones
    std::string op;
};

// What is made by one call: a step by its kernel, or several by one that makes them together.
class Bound {
public:
    Bound(const Fused* fused, std::vector<std::unique_ptr<BoundStep>> steps);

    // How many workers it gets; never more than `most`, never less than one.
    int workers(int most) const;
    int64_t scratch(int most) const;  // bytes
    bool empty() const { return steps_.front()->step.out.size() == 0; }
    void bind();
    void run(const Team& team) const {
        if (fused_)
            fused_->run(chain_, team);
        else
            steps_.front()->kernel->run(steps_.front()->step, team);
    }
    const std::vector<std::unique_ptr<BoundStep>>& steps() const { return steps_; }
    const char* name() const { return fused_ ? fused_->name : steps_.front()->op.c_str(); }

private:
    const Fused* fused_;  // null: one step
    std::vector<std::unique_ptr<BoundStep>> steps_;
    std::vector<const char*> ops_;
    std::vector<Step*> list_;
    Chain chain_;  // of ops_ and list_
};

class Program : private Job {
public:
    Program(std::shared_ptr<Pool> pool, std::vector<std::unique_ptr<Bound>> groups, char* scratch,
            int64_t scratch_nbytes);
    void run();
    // The first step whose kernel met bad data since the last call, or null; clears all.
    const BoundStep* take_fault(Fault* fault);
    bool faulty() const { return faulty_; }

private:
    struct Segment {
        size_t begin, end;
        int workers;
    };
    void make(size_t segment, int part) const override;

    std::shared_ptr<Pool> pool_;
    std::vector<std::unique_ptr<Bound>> groups_;
    std::vector<BoundStep*> steps_;
    std::vector<Fault> faults_;
    std::vector<Segment> segments_;
    std::vector<int> workers_;  // by segment
    char* scratch_;
    int64_t scratch_nbytes_;
    int team_ = 1;
    bool faulty_ = false;
};

}  // namespace jackfield
