// Command compileall compiles the committed kernels with the compiler of a GPU that is not there, and
// compares what became of them with a table. It needs a driver without hardware: make compileall
// runs it with Mesa's RADV for each AMD family that has a table in conformance/.
//
//	compileall TABLE            fails if a kernel of the table does not compile, spills more, or has fewer waves
//	compileall -update TABLE    writes the table
//
// It compiles the kernels of the fixed problems of every kernel in every format on every path,
// which together run every module, and the kernels that tables and rules choose for the suites of
// flashvk bench.
package main

import (
	"bytes"
	"cmp"
	"errors"
	"flag"
	"fmt"
	"log"
	"maps"
	"math"
	"os"
	"slices"
	"strings"

	"github.com/spf13/pflag"

	"github.com/flashvk/flashvk/internal/bench"
	"github.com/flashvk/flashvk/internal/bench/kernels"
	"github.com/flashvk/flashvk/internal/call"
	"github.com/flashvk/flashvk/internal/files"
	"github.com/flashvk/flashvk/internal/parallel"
	"github.com/flashvk/flashvk/tests/conformance"
	"github.com/flashvk/flashvk/vk"
	"github.com/flashvk/flashvk/vk/kit"
)

func main() {
	log.SetFlags(0)
	log.SetPrefix("compileall: ")
	update := flag.Bool("update", false, "write the table")
	flag.Parse()
	if flag.NArg() != 1 {
		log.Fatal("usage: compileall [-update] TABLE")
	}
	if err := run(flag.Arg(0), *update); err != nil {
		log.Fatal(err)
	}
}

func run(table string, update bool) (err error) {
	d, err := vk.Open(vk.Options{CompileOnly: true})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, d.Close()) }()
	list, err := suites(d)
	if err != nil {
		return err
	}
	list = append(list, fixed(d)...)
	errs := make([]error, len(list))
	parallel.For(len(list), func(i int) {
		if _, err := d.Measure(list[i].record); err != nil {
			errs[i] = fmt.Errorf("%s: %w", list[i].name, err)
		}
	})
	if err := errors.Join(errs...); err != nil {
		return err
	}
	rows := summarize(d.CachedKernels())
	if update {
		return files.Write(table, markdown(d.Caps(), rows))
	}
	return compare(table, rows)
}

// A recording is a call to compile.
type recording struct {
	name   string
	record func(c *vk.Cmd) error
}

// fixed returns the fixed problems that the device supports.
func fixed(d *vk.Device) (list []recording) {
	for x := range conformance.All(d, true) {
		pass := x.Problem.Pass()
		plan, err := x.Problem.Host().Choose(d.Caps(), pass)
		if err != nil {
			continue
		}
		list = append(list, recording{x.Name, func(c *vk.Cmd) error {
			return x.Problem.Host().Bind(placeholders(d, x.Problem.Tensors(), pass), workspace(d, plan), pass)(c)
		}})
	}
	return list
}

// suites returns the cases of the suites of flashvk bench that the device supports.
func suites(d *vk.Device) (list []recording, err error) {
	for _, k := range kernels.All() {
		flags := k.New()
		flags.Add(pflag.NewFlagSet(k.Name, pflag.ContinueOnError), true)
		for _, s := range flags.Suites() {
			_, ops, err := flags.Cases(s.Name, false)
			if err != nil {
				return nil, fmt.Errorf("suite %s of %s: %w", s.Name, k.Name, err)
			}
			for _, op := range ops {
				list = append(list, passes(d, op))
			}
		}
	}
	return list, nil
}

// passes returns the passes of a case on the path that the device chooses, one after the other: they
// share tensors.
func passes(d *vk.Device, op bench.Op) recording {
	const impl = "auto"
	return recording{op.Name() + " " + op.Describe(), func(c *vk.Cmd) error {
		for _, pass := range []bench.Pass{bench.Forward, bench.Backward} {
			plan, err := op.Choose(d.Caps(), impl, pass)
			if err != nil {
				continue
			}
			record, err := op.Bind(d, placeholders(d, op.Tensors(), pass.Kit()), workspace(d, plan), impl, pass)
			if err != nil {
				return err
			}
			if err := record(c); err != nil {
				return err
			}
		}
		return nil
	}}
}

// placeholders returns the tensors of a pass, without memory.
func placeholders(d *vk.Device, tensors []call.Tensor, pass kit.Pass) map[string]vk.Tensor {
	all, elements := map[string]vk.Tensor{}, map[string]int{} // of memories, which may be shared
	for _, t := range tensors {
		n := call.Product(t.Shape)
		if t.Off || n == 0 || pass == kit.Forward && t.Role >= call.Upstream {
			continue
		}
		x := vk.View(nil, t.DType, t.Shape...)
		memory := cmp.Or(t.Memory, t.Name)
		x.Offset = elements[memory]
		elements[memory] += n
		all[t.Name] = x
	}
	buffers := map[string]*vk.Buffer{}
	for _, t := range tensors {
		if x, ok := all[t.Name]; ok {
			memory := cmp.Or(t.Memory, t.Name)
			if buffers[memory] == nil {
				buffers[memory] = d.Placeholder(memory, int64(elements[memory]*t.DType.Size()))
			}
			x.Buffer = buffers[memory]
			all[t.Name] = x
		}
	}
	return all
}

// workspace returns the workspace of a plan, without memory.
func workspace(d *vk.Device, plan kit.Plan) *vk.Buffer {
	if plan.Workspace() == 0 {
		return nil
	}
	return d.Placeholder(call.WorkspaceName, plan.Workspace())
}

// A row is what became of a module: the worst of all configurations that it was compiled in.
type row struct {
	module         string
	configurations int
	registers      uint64 // of an invocation
	spilling       int    // configurations that spill
	spill          uint64 // bytes of an invocation
	shared, code   uint64 // bytes
	waves          uint64 // subgroups that a SIMD holds
}

// header is the first line of a table, with the fields of a row.
const header = "| module | configurations | registers | spilling | spill | shared | code | waves |"

// String returns the row of a table.
func (r *row) String() string {
	return fmt.Sprintf("| %s | %d | %d | %d | %d | %d | %d | %d |",
		r.module, r.configurations, r.registers, r.spilling, r.spill, r.shared, r.code, r.waves)
}

// parse reads what String writes.
func parse(line string) (r row, err error) {
	_, err = fmt.Sscanf(line, "| %s | %d | %d | %d | %d | %d | %d | %d |",
		&r.module, &r.configurations, &r.registers, &r.spilling, &r.spill, &r.shared, &r.code, &r.waves)
	return r, err
}

// summarize returns a row for each module, by name.
func summarize(list []vk.KernelInfo) (rows []row) {
	byName := map[string]*row{}
	for _, k := range list {
		r := byName[k.Name]
		if r == nil {
			r = &row{module: k.Name, waves: math.MaxUint64}
			byName[k.Name] = r
		}
		s := k.Stats
		r.configurations++
		if s.SpillBytes > 0 {
			r.spilling++
		}
		r.registers, r.spill = max(r.registers, s.Registers), max(r.spill, s.SpillBytes)
		r.shared, r.code = max(r.shared, s.SharedBytes), max(r.code, s.CodeBytes)
		r.waves = min(r.waves, s.Waves)
	}
	for _, name := range slices.Sorted(maps.Keys(byName)) {
		rows = append(rows, *byName[name])
	}
	return rows
}

// markdown returns the text of a table.
func markdown(caps *vk.Caps, rows []row) []byte {
	var b bytes.Buffer
	fmt.Fprintf(&b, "# %s, as its compiler has it\n\n", caps.Name)
	fmt.Fprintf(&b, "What %s %s makes of each module that the device can run, without a GPU: nothing has run. Of each\n", caps.DriverName, caps.DriverInfo)
	fmt.Fprintf(&b, "module the worst of all configurations. Registers and bytes of spilled registers are of one\n")
	fmt.Fprintf(&b, "invocation; waves are the subgroups that a SIMD holds. `make compileall` compares, `make compileall\n")
	fmt.Fprintf(&b, "COMPILEALL=-update` writes this file.\n\n%s\n|%s\n", header, strings.Repeat(" --- |", strings.Count(header, "|")-1))
	for i := range rows {
		fmt.Fprintln(&b, &rows[i])
	}
	return b.Bytes()
}

// compare compares rows with the rows of a table.
func compare(table string, rows []row) error {
	text, err := os.ReadFile(table)
	if err != nil {
		return err
	}
	want := map[string]row{}
	for line := range strings.Lines(string(text)) {
		if r, err := parse(line); err == nil {
			want[r.module] = r
		}
	}
	var errs []error
	for _, r := range rows {
		w, ok := want[r.module]
		switch {
		case !ok:
			errs = append(errs, fmt.Errorf("%s has no row for %s", table, r.module))
		case r.spill > w.spill:
			errs = append(errs, fmt.Errorf("%s spills %d bytes, %d in %s", r.module, r.spill, w.spill, table))
		case r.waves < w.waves:
			errs = append(errs, fmt.Errorf("%s has %d waves, %d in %s", r.module, r.waves, w.waves, table))
		}
		delete(want, r.module)
	}
	for _, name := range slices.Sorted(maps.Keys(want)) {
		errs = append(errs, fmt.Errorf("%s of %s was not compiled", name, table))
	}
	if len(errs) == 0 {
		fmt.Printf("%s: %d modules, none worse\n", table, len(rows))
	}
	return errors.Join(errs...)
}
