// The Python face of the CPU kernels. Plain tuples come in, so the core needs no class of ours:
//   view    (address, dtype name, layout name, constant, shape, strides)
//   step    (op, result view, [operand view or None], [attribute value]), both in the order of the kernel's own lists
//   group   (name of the kernel that makes all its steps together, or "" for one step, [step])
#include "levels.h"
#include "memory.h"
#include "pool.h"
#include "program.h"

#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <stdexcept>
#include <unordered_map>

namespace py = pybind11;

namespace jackfield {

extern const Packer* const packers[];  // ends with a null; packing n of View.layout is entry n - 1

namespace {

#define JF_NAME(number, name, ...) , name
const char* const DTYPE_NAMES[DTYPES] = {"f32", "f16", "bf16", "f64", "i8",
                                         "u8",  "i16", "i32",  "i64", "bool" JF_BLOCK_DTYPES(JF_NAME)};
#undef JF_NAME

struct Unsupported : std::runtime_error {
    using std::runtime_error::runtime_error;
};

DType dtype_of(const std::string& name) {
    for (int i = 0; i < DTYPES; ++i)
        if (name == DTYPE_NAMES[i]) return DType(i);
    throw Unsupported("dtype " + name + " is not known to jackfield-cpu");
}

int layout_of(const std::string& name) {
    if (name.empty()) return 0;
    for (int i = 0; packers[i]; ++i)
        if (name == packers[i]->name) return i + 1;
    throw Unsupported("layout " + name + " is not known to jackfield-cpu");
}

const Packer& packer_of(const std::string& name) {
    const int layout = layout_of(name);
    if (!layout) throw Unsupported("the plain layout has no packer");
    return *packers[layout - 1];
}

View view_of(const py::tuple& from) {
    View view{};
    view.data = reinterpret_cast<char*>(from[0].cast<uintptr_t>());
    view.dtype = dtype_of(from[1].cast<std::string>());
    view.layout = layout_of(from[2].cast<std::string>());
    view.constant = from[3].cast<bool>();
    view.present = true;
    const py::tuple shape = from[4], strides = from[5];
    view.rank = int(shape.size());
    if (view.rank > RANK) throw Unsupported("rank " + std::to_string(view.rank) + ", at most 4");
    for (int i = 0; i < RANK; ++i) {
        const int from_axis = i - (RANK - view.rank);
        view.shape[i] = from_axis < 0 ? 1 : shape[size_t(from_axis)].cast<int64_t>();
        view.stride[i] = from_axis < 0 ? 0 : strides[size_t(from_axis)].cast<int64_t>();
    }
    return view;
}

// A number, or a pair of them.
void add_numbers(Attr& attr, const py::handle& part) {
    if (py::isinstance<py::tuple>(part)) {
        for (const py::handle inner : part) add_numbers(attr, inner);
        return;
    }
    if (attr.count >= MAX_NUMBERS) throw Unsupported("an attribute with more than 8 numbers");
    attr.numbers[attr.count] = part.cast<double>();
    attr.integers[attr.count] =
        py::isinstance<py::int_>(part) ? part.cast<int64_t>() : int64_t(attr.numbers[attr.count]);
    attr.count++;
}

Attr attr_of(const py::handle& value, std::vector<std::string>& texts) {
    Attr attr{};
    if (value.is_none()) {
        attr.absent = true;
    } else if (py::isinstance<py::str>(value)) {
        texts.push_back(value.cast<std::string>());
        attr.text = texts.back().c_str();
    } else if (py::isinstance<py::tuple>(value)) {
        attr.is_tuple = true;
        for (const py::handle part : value) add_numbers(attr, part);
    } else {
        attr.number = value.cast<double>();
        attr.integer = py::isinstance<py::int_>(value) || py::isinstance<py::bool_>(value) ? value.cast<int64_t>()
                                                                                           : int64_t(attr.number);
    }
    return attr;
}

bool same(const Attr& a, const Attr& b) {
    const bool text = a.text && b.text ? !std::strcmp(a.text, b.text) : a.text == b.text;
    return text && a.integer == b.integer && a.count == b.count && a.is_tuple == b.is_tuple && a.absent == b.absent &&
           !std::memcmp(&a.number, &b.number, sizeof a.number) &&
           !std::memcmp(a.numbers, b.numbers, sizeof a.numbers) &&
           !std::memcmp(a.integers, b.integers, sizeof a.integers);
}

// The attributes of the steps of one program: those of a layer come again in every layer, and one takes 168 bytes.
class KnownAttrs {
public:
    std::shared_ptr<const Attrs> shared(const std::string& op, std::shared_ptr<const Attrs> fresh) {
        auto& known = by_op_[op];
        for (const auto& old : known)
            if (std::equal(old->values.begin(), old->values.end(), fresh->values.begin(), fresh->values.end(), same))
                return old;
        known.push_back(fresh);
        return fresh;
    }

private:
    std::unordered_map<std::string, std::vector<std::shared_ptr<const Attrs>>> by_op_;
};

std::unique_ptr<BoundStep> bind(const py::tuple& from, const Kernel& kernel, KnownAttrs* known = nullptr) {
    auto bound = std::make_unique<BoundStep>();
    bound->kernel = &kernel;
    bound->op = from[0].cast<std::string>();
    Step& step = bound->step;
    step.out = view_of(from[1]);
    const py::list operands = from[2], attrs = from[3];
    if (operands.size() > size_t(MAX_OPERANDS) || attrs.size() > size_t(MAX_ATTRS))
        throw Unsupported("too many operands or attributes");
    bound->operands.reserve(operands.size());
    for (const py::handle operand : operands)
        bound->operands.push_back(operand.is_none() ? View{} : view_of(py::reinterpret_borrow<py::tuple>(operand)));
    auto fresh = std::make_shared<Attrs>();
    fresh->texts.reserve(attrs.size());  // values point into it: it must not move
    fresh->values.reserve(attrs.size());
    for (const py::handle value : attrs) fresh->values.push_back(attr_of(value, fresh->texts));
    bound->attrs = known ? known->shared(bound->op, std::move(fresh)) : std::move(fresh);
    step.in = bound->operands.data();
    step.attr = bound->attrs->values.data();
    step.n_in = int32_t(bound->operands.size());
    step.n_attr = int32_t(attrs.size());
    return bound;
}

const Kernel& kernel_of(const Level& level, const std::string& op) {
    const Kernel* kernel = find_kernel(level, op);
    if (!kernel) throw Unsupported("no kernel for " + op);
    return *kernel;
}

const Level& usable_level(const std::string& name) {
    const Level* level = find_level(name);
    if (!level || !level->usable()) throw Unsupported("level " + name + " can't run on this CPU");
    return *level;
}

// ---- what Python asks

py::list level_list() {
    py::list rows;
    for (const Level& level : levels()) rows.append(py::make_tuple(level.name, level.lacks));
    return rows;
}

py::list names_of(uint64_t dtypes) {
    py::list names;
    for (int i = 0; i < DTYPES; ++i)
        if (dtypes & bit(DType(i))) names.append(DTYPE_NAMES[i]);
    return names;
}

py::list layouts_of(uint64_t layouts) {
    py::list names;
    for (int i = 0; packers[i]; ++i)
        if (layouts & (uint64_t(1) << (i + 1))) names.append(packers[i]->name);
    return names;
}

// op -> (operands [(name, reads, dtypes, layouts)], attributes, results); from the baseline, which every machine can
// read
py::dict kernel_table() {
    static const char* const READS[] = {"dense", "rows", "any"};
    py::dict table;
    for (const Kernel* const* k = levels().back().kernels; *k; ++k) {
        py::list operands, attributes;
        for (int i = 0; i < (*k)->n_operands; ++i) {
            const Operand& o = (*k)->operands[i];
            operands.append(py::make_tuple(o.name, READS[o.reads], names_of(o.dtypes), layouts_of(o.layouts)));
        }
        for (int i = 0; i < (*k)->n_attributes; ++i) attributes.append((*k)->attributes[i]);
        table[(*k)->op] = py::make_tuple(operands, attributes, names_of((*k)->results));
    }
    return table;
}

// Every level answers alike; the one that runs anyway is asked, since the code of another would only take up memory.
// A level this machine lacks might not even execute: the baseline speaks for it.
py::object why_not(const py::tuple& from, const std::string& arch) {
    const std::string op = from[0].cast<std::string>();
    const Level* level = find_level(arch);
    const Kernel* kernel = find_kernel(level && level->usable() ? *level : levels().back(), op);
    if (!kernel) return py::str("no kernel for " + op);
    std::unique_ptr<BoundStep> bound;
    try {
        bound = bind(from, *kernel);
    } catch (const Unsupported& e) {
        return py::str(e.what());
    }
    Words words{};
    if (!kernel->why_not || !kernel->why_not(bound->step, words)) return py::none();
    return py::str(words.length ? words.text : "refused without a reason");
}

std::unique_ptr<Bound> bind_group(const py::tuple& from, const Level& level, KnownAttrs* known = nullptr) {
    const std::string name = from[0].cast<std::string>();
    const py::list members = from[1];
    const Fused* fused = name.empty() ? nullptr : find_fused(level, name);
    if (!name.empty() && !fused) throw Unsupported("no kernel makes " + name);
    if (members.empty() || (!fused && members.size() > 1)) throw Unsupported("a group of no steps, or without a name");
    std::vector<std::unique_ptr<BoundStep>> steps;
    steps.reserve(members.size());
    for (const py::handle item : members) {
        const py::tuple step = py::reinterpret_borrow<py::tuple>(item);
        steps.push_back(bind(step, kernel_of(level, step[0].cast<std::string>()), known));
    }
    return std::make_unique<Bound>(fused, std::move(steps));
}

int64_t scratch(const py::tuple& group, const std::string& level, int workers) {
    return bind_group(group, usable_level(level))->scratch(workers);
}

py::list packings(const py::tuple& constant) {
    const View view = view_of(constant);
    py::list found;
    for (int i = 0; packers[i]; ++i)
        if (packers[i]->takes(view)) {
            const Packer::Part part = packers[i]->part(view);
            found.append(
                py::make_tuple(packers[i]->name, packers[i]->nbytes(view), py::make_tuple(part.plain, part.packed)));
        }
    return found;
}

struct Contiguous {  // the bytes of a buffer object, without pybind11's allocations
    Py_buffer info;
    Contiguous(const py::handle& object, bool writable) {
        if (PyObject_GetBuffer(object.ptr(), &info, writable ? PyBUF_WRITABLE : PyBUF_SIMPLE))
            throw py::error_already_set();
    }
    ~Contiguous() { PyBuffer_Release(&info); }
};

void check_sizes(bool fit, const Contiguous& plain, const Contiguous& packed, const char* what) {
    if (!fit)
        throw py::value_error(std::string(what) + ": " + std::to_string(plain.info.len) + " plain and " +
                              std::to_string(packed.info.len) + " packed bytes do not belong together");
}

// A piece of a constant on its way to its place: whole parts, or all of the last ones; packed, or copied as it is.
struct Piece {
    Piece(const py::handle& plain, const py::handle& packed) : from(plain, false), to(packed, true) {}

    // The number of the first block with a scale that is no finite number, or -1. Needs no GIL.
    int64_t make() const {
        const char* source = static_cast<const char*>(from.info.buf);
        char* target = static_cast<char*>(to.info.buf);
        if (packer) return packer->pack(view, source, from.info.len, target);
        if (from.info.len) std::memcpy(target, source, size_t(from.info.len));
        return -1;
    }

    const Packer* packer = nullptr;
    View view{};
    const Contiguous from, to;
};

void check_packed(Piece& piece, const std::string& layout, const py::tuple& constant, int64_t block,
                  int64_t block_nbytes) {
    piece.view = view_of(constant);
    piece.packer = &packer_of(layout);
    const Packer::Part part = piece.packer->part(piece.view);
    const int64_t nbytes = piece.from.info.len, parts = (nbytes + part.plain - 1) / part.plain;
    const int64_t rest = nbytes % part.plain, whole = piece.view.size() / block * block_nbytes;
    check_sizes((!rest || rest == whole % part.plain) && nbytes <= whole && piece.to.info.len == parts * part.packed,
                piece.from, piece.to, "pack");
}

py::object pack(const std::string& layout, const py::tuple& constant, int64_t block, int64_t block_nbytes,
                const py::handle& plain, const py::handle& packed) {
    Piece piece(plain, packed);
    check_packed(piece, layout, constant, block, block_nbytes);
    int64_t bad;
    {
        py::gil_scoped_release released;
        bad = piece.make();
    }
    return bad < 0 ? py::object(py::none()) : py::object(py::int_(bad));
}

// Pieces [((layout, constant, block, block_nbytes) or None, plain, packed)] one after the other; which piece and which
// of its blocks is the first bad one, or None.
py::object fill(const py::list& from) {
    std::vector<std::unique_ptr<Piece>> pieces;
    pieces.reserve(from.size());
    for (const py::handle item : from) {
        const py::tuple row = py::reinterpret_borrow<py::tuple>(item);
        const py::object plain = row[1], packed = row[2];
        pieces.push_back(std::make_unique<Piece>(plain, packed));
        Piece& piece = *pieces.back();
        if (row[0].is_none()) {
            check_sizes(piece.from.info.len == piece.to.info.len, piece.from, piece.to, "copy");
        } else {
            const py::tuple how = row[0];
            check_packed(piece, how[0].cast<std::string>(), how[1], how[2].cast<int64_t>(), how[3].cast<int64_t>());
        }
    }
    size_t at = 0;
    int64_t bad = -1;
    {
        py::gil_scoped_release released;
        while (at < pieces.size() && (bad = pieces[at]->make()) < 0) ++at;
    }
    return bad < 0 ? py::object(py::none()) : py::object(py::make_tuple(at, bad));
}

void unpack(const std::string& layout, const py::tuple& constant, int64_t block, int64_t block_nbytes,
            const py::handle& packed, const py::handle& plain) {
    const View view = view_of(constant);
    const Packer& packer = packer_of(layout);
    if (!packer.unpack) throw Unsupported("layout " + layout + " can't be unpacked");
    const Contiguous from(packed, false), to(plain, true);
    check_sizes(from.info.len == packer.nbytes(view) && to.info.len == view.size() / block * block_nbytes, to, from,
                "unpack");
    py::gil_scoped_release released;
    packer.unpack(view, static_cast<const char*>(from.info.buf), static_cast<char*>(to.info.buf));
}

// ---- memory

constexpr py::ssize_t LONG_COPY = 64 * 1024;  // bytes from which giving up the GIL pays

void check_range(const Memory& memory, int64_t offset, py::ssize_t nbytes) {
    if (!memory.data() || offset < 0 || nbytes < 0 || size_t(offset) + size_t(nbytes) > memory.nbytes())
        throw py::value_error("bytes " + std::to_string(offset) + " to " + std::to_string(offset + nbytes) +
                              " of a buffer of " + std::to_string(memory.nbytes()));
}

void write(Memory& memory, int64_t offset, const py::handle& data) {
    const Contiguous from(data, false);
    check_range(memory, offset, from.info.len);
    const auto copy = [&] { std::memcpy(memory.data() + offset, from.info.buf, size_t(from.info.len)); };
    if (from.info.len < LONG_COPY && !memory.is_huge()) return copy();  // a fresh huge page takes time as well
    py::gil_scoped_release released;
    copy();
}

void read(Memory& memory, int64_t offset, const py::handle& out) {
    const Contiguous to(out, true);
    check_range(memory, offset, to.info.len);
    if (to.info.len < LONG_COPY) {
        std::memcpy(to.info.buf, memory.data() + offset, size_t(to.info.len));
        return;
    }
    py::gil_scoped_release released;
    std::memcpy(to.info.buf, memory.data() + offset, size_t(to.info.len));
}

py::memoryview host_bytes(const Memory& memory, int64_t offset, py::ssize_t nbytes) {
    check_range(memory, offset, nbytes);
    return py::memoryview::from_memory(memory.data() + offset, nbytes);
}

std::unique_ptr<Memory> borrow(const py::handle& data) {
    const Contiguous from(data, false);  // the caller keeps the object, and so the bytes, alive
    return std::make_unique<Memory>(static_cast<char*>(from.info.buf), size_t(from.info.len));
}

// A forked child has the pool but not its workers. They were asleep on its condition, and destroying a condition waits
// until nobody sleeps on it: in the child that is for ever, so there a pool is left where it lies.
std::shared_ptr<Pool> make_pool(int workers, const std::vector<int>& cpus) {
    return std::shared_ptr<Pool>(new Pool(workers, cpus), [](Pool* pool) {
        if (!pool->forked()) delete pool;
    });
}

// ---- programs

std::unique_ptr<Program> make_program(std::shared_ptr<Pool> pool, const std::string& level_name, const py::list& groups,
                                      uintptr_t scratch, int64_t scratch_nbytes) {
    const Level& level = usable_level(level_name);
    std::vector<std::unique_ptr<Bound>> bound;
    bound.reserve(groups.size());
    KnownAttrs known;
    for (const py::handle item : groups) {
        bound.push_back(bind_group(py::reinterpret_borrow<py::tuple>(item), level, &known));
        const int64_t wanted = bound.back()->scratch(pool->size());
        if (wanted > scratch_nbytes)
            throw Unsupported(bound.back()->name() + std::string(" needs ") + std::to_string(wanted) +
                              " bytes of scratch, got " + std::to_string(scratch_nbytes));
    }
    return std::make_unique<Program>(std::move(pool), std::move(bound), reinterpret_cast<char*>(scratch),
                                     scratch_nbytes);
}

py::object take_fault(Program& program) {
    Fault fault{};
    const BoundStep* bound = program.take_fault(&fault);
    if (!bound) return py::none();
    return py::make_tuple(bound->op, fault.code == FAULT_INDEX ? "index" : "nonfinite", fault.operand, fault.value);
}

}  // namespace

PYBIND11_MODULE(_native, m, py::mod_gil_not_used()) {
    py::register_exception<Unsupported>(m, "Unsupported", PyExc_ValueError);
    m.def("levels", &level_list);
    m.def("set_bf16_products", &set_bf16_products);
    m.def("set_iq_panels", &set_iq_panels);
    m.def("kernels", &kernel_table);
    m.def("why_not", &why_not);
    m.def("scratch", &scratch);
    m.def("packings", &packings);
    m.def("pack", &pack);
    m.def("fill", &fill);
    m.def("unpack", &unpack);
    m.def("borrow", &borrow);
    py::class_<Pool, std::shared_ptr<Pool>>(m, "Pool")
        .def(py::init(&make_pool), py::arg("workers"), py::arg("cpus") = std::vector<int>{})
        .def_property_readonly("size", &Pool::size)
        .def_property_readonly("forked", &Pool::forked);
    py::class_<Memory>(m, "Memory")
        .def(py::init<size_t, bool>(), py::arg("nbytes"), py::arg("huge") = false)
        .def_property_readonly("address",
                               [](const Memory& memory) { return reinterpret_cast<uintptr_t>(memory.data()); })
        .def_property_readonly("nbytes", &Memory::nbytes)
        .def("write", &write)
        .def("read", &read)
        .def("host_bytes", &host_bytes)
        .def("free", &Memory::free);
    py::class_<Program>(m, "Program")
        .def(py::init(&make_program))
        .def("run", &Program::run, py::call_guard<py::gil_scoped_release>())
        .def_property_readonly("faulty", &Program::faulty)
        .def("take_fault", &take_fault);
}

}  // namespace jackfield
