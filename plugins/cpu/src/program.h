// A run with all addresses bound: a list of steps, cut into segments between which the workers meet.
#pragma once
#include "levels.h"
#include "pool.h"

#include <memory>
#include <string>
#include <vector>

namespace jackfield {

struct BoundStep {
    const Kernel* kernel;
    Step step;
    std::vector<View> operands;  // what step.in points at
    std::vector<Attr> attrs;     // what step.attr points at
    std::string op;
    std::vector<std::string> texts;  // text attributes, which Step points at
};

// How many workers a step gets; never more than `most`, never less than one.
int workers_of(const Kernel&, const Step&, int most);
int64_t scratch_of(const Kernel&, const Step&, int most);

class Program {
public:
    Program(std::shared_ptr<Pool> pool, std::vector<std::unique_ptr<BoundStep>> steps, char* scratch,
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
    void work(int index);

    std::shared_ptr<Pool> pool_;
    std::vector<std::unique_ptr<BoundStep>> steps_;
    std::vector<Fault> faults_;
    std::vector<Segment> segments_;
    char* scratch_;
    int64_t scratch_nbytes_;
    int team_ = 1;
    bool faulty_ = false;
};

}  // namespace jackfield
