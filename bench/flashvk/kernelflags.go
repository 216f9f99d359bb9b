package main

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"math"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/flashvk/flashvk/internal/bench"
	"github.com/flashvk/flashvk/internal/bench/kernels"
	"github.com/flashvk/flashvk/internal/bench/peer"
	"github.com/flashvk/flashvk/vk"
)

// kernelFlags are flags that commands of a kernel share. Each command adds those that it has.
type kernelFlags struct {
	kernel  kernels.Kernel
	flags   kernels.Flags // of the problem
	set     *pflag.FlagSet
	own     []string    // names of the kernel's flags
	axes    []*gridAxis // the flags among own that may be lists
	suite   string
	small   bool
	unless  func(cpu bool) []string // flags that are set unless they are given, as in seqlen=16
	presets []string                // flags that unless has set

	backward, both       bool
	impls                []string
	warmup, iters, count int
	peers                []peer.Peer
	peerTime             time.Duration
	close                bench.Tolerance
	tuning               string
	noTuning             bool
	output
}

// output says where and how a command measures and prints.
type output struct {
	format bench.Format
	wide   bool
	device string
}

// add adds the flags, with some formats.
func (o *output) add(f *pflag.FlagSet, usage string, formats ...bench.Format) {
	o.addPrinted(f, usage, formats...)
	deviceVar(f, &o.device)
}

// addPrinted is add without --device.
func (o *output) addPrinted(f *pflag.FlagSet, usage string, formats ...bench.Format) {
	o.format = bench.Table
	f.Var(value[bench.Format]{Target: &o.format, Parse: kernels.OneOf(formats), Kind: "FORMAT"}, "format", "table (default), "+usage)
	kernels.BoolVar(f, &o.wide, "wide", fmt.Sprintf("a table with all columns, however wide; else at most %d wide", bench.TerminalWidth))
}

func newKernelFlags(k kernels.Kernel) kernelFlags {
	return kernelFlags{kernel: k, flags: k.New(), count: 10, peerTime: 2 * time.Minute}
}

// addSizes adds the flags of one problem. Sizes, types and switches may be lists, if that is said.
func (k *kernelFlags) addSizes(f *pflag.FlagSet, lists bool) {
	k.set = f
	before := map[string]bool{}
	f.VisitAll(func(x *pflag.Flag) { before[x.Name] = true })
	k.flags.Add(f, true)
	f.VisitAll(func(x *pflag.Flag) {
		if before[x.Name] {
			return
		}
		k.own = append(k.own, x.Name)
		if lists && slices.Contains([]string{"N", "int", "TYPE", "PART", "bool"}, x.Value.Type()) {
			axis := &gridAxis{Value: x.Value}
			x.Value, k.axes = axis, append(k.axes, axis)
		}
	})
}

func (k *kernelFlags) addSuite(f *pflag.FlagSet) {
	var names []string
	for _, s := range k.flags.Suites() {
		names = append(names, s.Name)
	}
	f.Var(value[string]{Target: &k.suite, Parse: kernels.OneOf(names), Kind: "NAME"}, "suite", "measure the cases of a suite in one table instead of one problem: "+strings.Join(names, ", "))
	kernels.BoolVar(f, &k.small, "small", "the suite with sizes for a CPU device (default there)")
}

// addImpls adds --impl, a comma list of paths.
func (k *kernelFlags) addImpls(f *pflag.FlagSet, paths []string, otherwise string) {
	f.Var(value[[]string]{Target: &k.impls, Parse: kernels.ListOf(kernels.OneOf(paths)), Kind: "PATHS"}, "impl", "paths, a comma list of "+strings.Join(paths, ", ")+" (default "+otherwise+")")
}

func (k *kernelFlags) addCount(f *pflag.FlagSet) {
	kernels.IntVar(f, &k.count, "count", "samples of each path (default 10)")
}

// addProtocol adds the flags that say how much is measured.
func (k *kernelFlags) addProtocol(f *pflag.FlagSet) {
	kernels.IntVar(f, &k.warmup, "warmup", "least warm-up calls of each path; the warm-up also lasts until the clock has settled")
	kernels.IntVar(f, &k.iters, "iters", "timed calls of each path, spread over the samples (default: as many as take some milliseconds per sample)")
	k.addCount(f)
}

// addClose adds the flags of other programs, and of a tolerance that holds for them, too.
func (k *kernelFlags) addClose(f *pflag.FlagSet) {
	addPeers(f, &k.peers, &k.peerTime)
	f.Float64Var(&k.close.Abs, "atol", 0, "also demand |got-want| <= atol + rtol*|want| of each compared element, as torch.allclose; our own limits stay")
	f.Float64Var(&k.close.Rel, "rtol", 0, "see --atol")
}

// addPasses adds the flags of passes, if the kernel has a backward pass.
func (k *kernelFlags) addPasses(f *pflag.FlagSet) {
	if k.kernel.Backward {
		f.BoolVar(&k.backward, "backward", false, "measure the backward pass instead: the gradients")
		f.BoolVar(&k.both, "both", false, "measure the forward pass followed by the backward pass as one call; with peers also each pass alone")
	}
}

// addTuning adds the flags of tuning, if the kernel has a file of configurations.
func (k *kernelFlags) addTuning(f *pflag.FlagSet) {
	if k.kernel.Tune != nil {
		f.StringVar(&k.tuning, "tuning", "", "file of flashvk tune to use (default: the one in the user's cache folder, if there is one)")
		f.BoolVar(&k.noTuning, "no-tuning", false, "use the built-in configurations only")
	}
}

// maxCount is the largest --count: a day of samples.
const maxCount = 100_000

// checkRange returns a usage error for a number that is out of range, if its flag is given.
func checkRange(f *pflag.FlagSet, name string, n, least, most int) error {
	if f.Changed(name) && (n < least || n > most) {
		return usagef("--%s %d is not in %d..%d", name, n, least, most)
	}
	return nil
}

// check returns a usage error. Most mistakes show before a device is opened: a divisor of a CPU's
// default sizes also divides a GPU's.
func (k *kernelFlags) check() error {
	if err := cmp.Or(
		checkRange(k.set, "count", k.count, 1, maxCount), checkRange(k.set, "warmup", k.warmup, 0, math.MaxInt32),
		checkRange(k.set, "iters", k.iters, 1, k.count*bench.MaxBatchCalls), exclusive(k.set, "tuning", "no-tuning"), exclusive(k.set, "backward", "both"), checkPeers(k.peers, k.peerTime),
	); err != nil {
		return err
	}
	for _, x := range []struct {
		name string
		x    float64
	}{{"atol", k.close.Abs}, {"rtol", k.close.Rel}} {
		if !(x.x >= 0) || math.IsInf(x.x, 0) {
			return usagef("--%s %v is not a finite number from 0 on", x.name, x.x)
		}
	}
	_, _, err := k.ops(false)
	return err
}

func (k *kernelFlags) pass() bench.Pass {
	switch {
	case k.backward:
		return bench.Backward
	case k.both:
		return bench.Both
	}
	return bench.Forward
}

// protocol returns the protocol of the flags.
func (k *kernelFlags) protocol(cpu bool) bench.Protocol {
	pr := bench.DefaultProtocol(cpu)
	pr.Samples, pr.Warmup, pr.Iters = k.count, k.warmup, k.iters
	return pr
}

// ops returns the problems to measure, and their suite, if they have one. An error is a usage
// error.
func (k *kernelFlags) ops(cpu bool) (ops []bench.Op, suite *bench.Suite, err error) {
	switch {
	case k.suite == "" && k.small:
		return nil, nil, usagef("--small needs --suite")
	case k.suite == "":
		ops, err = k.problems(cpu)
	default:
		for _, name := range k.own {
			if k.set.Changed(name) && !slices.Contains(k.kernel.How, name) {
				return nil, nil, usagef("--suite %s and --%s contradict each other", k.suite, name)
			}
		}
		small := k.small || cpu && !k.set.Changed("small")
		suite, ops, err = k.flags.Cases(k.suite, small)
	}
	if err != nil {
		err = usageError{err}
	}
	return ops, suite, err
}

// problems returns the problems of the flags of sizes.
func (k *kernelFlags) problems(cpu bool) ([]bench.Op, error) {
	if k.unless != nil {
		for _, x := range k.unless(cpu) {
			name, text, _ := strings.Cut(x, "=")
			if k.set.Changed(name) && !slices.Contains(k.presets, name) {
				continue
			}
			if err := k.set.Set(name, text); err != nil {
				return nil, err
			}
			k.presets = append(k.presets, name)
		}
	}
	return each(k.axes, func() (bench.Op, error) { return k.flags.Op(cpu) })
}

// on returns the problems for a device, with its tuning.
func (k *kernelFlags) on(stderr io.Writer, caps *vk.Caps) ([]bench.Op, *bench.Suite, error) {
	ops, suite, err := k.ops(caps.Type == vk.CPU)
	if err == nil {
		err = k.use(stderr, caps, ops)
	}
	return ops, suite, err
}

// use makes ops use the tuning of a device.
func (k *kernelFlags) use(stderr io.Writer, caps *vk.Caps, ops []bench.Op) error {
	if k.set.Lookup("no-tuning") == nil || k.noTuning {
		return nil
	}
	tuning, err := loadTuning(stderr, k.tuning, caps)
	for i, op := range ops {
		ops[i] = op.Use(tuning)
	}
	return err
}

// verdict returns an error if a path was wrong, or if a path was not measured although it was
// named, or no path was.
func verdict(results []bench.Result, named bool) error {
	measured := slices.ContainsFunc(results, func(x bench.Result) bool { return x.Status == bench.StatusOK && !x.Peer })
	for _, x := range results {
		switch {
		case x.Status == bench.StatusFailed:
			return fmt.Errorf("%s is wrong: %s", x.Impl, x.Reason)
		case x.Status == bench.StatusUnsupported && (named || !measured):
			return fmt.Errorf("%s is not supported: %s", x.Impl, x.Reason)
		}
	}
	return nil
}

// addPeers adds the flags of other programs to measure.
func addPeers(f *pflag.FlagSet, list *[]peer.Peer, limit *time.Duration) {
	parse := func(text string) ([]peer.Peer, error) {
		x, err := peer.Parse(text)
		return append(*list, x), err
	}
	f.Var(value[[]peer.Peer]{Target: list, Parse: parse, Kind: "NAME=COMMAND"}, "peer", "also measure another program on the same inputs: NAME=COMMAND; may be given again (see tools/peers)")
	f.DurationVar(limit, "peer-time", 2*time.Minute, "time after which a peer is killed, for each problem")
}

func checkPeers(list []peer.Peer, limit time.Duration) error {
	for i, x := range list {
		if slices.ContainsFunc(list[:i], func(y peer.Peer) bool { return y.Name == x.Name }) {
			return usagef("--peer %s occurs twice", x.Name)
		}
	}
	if limit <= 0 {
		return usagef("--peer-time %v is not positive", limit)
	}
	return nil
}

// kernelCommands returns a command with the subcommand of each kernel that make makes.
func kernelCommands(use string, make func(kernels.Kernel) *cobra.Command) *cobra.Command {
	cmd := &cobra.Command{Use: use, DisableFlagsInUseLine: true, Args: subcommand, Run: func(*cobra.Command, []string) {}}
	for _, k := range kernels.All() {
		cmd.AddCommand(make(k))
	}
	return cmd
}

// A gridAxis is a flag that may be a list. It sets the flag of the kernel to one value after the
// other.
type gridAxis struct {
	pflag.Value
	values []string
}

// maxProblems bounds the problems of a grid.
const maxProblems = 10_000

func (x *gridAxis) Set(text string) error {
	if text == "both" && x.Value.Type() == "bool" {
		text = "false,true"
	}
	var values []string
	words := strings.Split(text, ",")
	for _, word := range words {
		list, err := expand(word)
		if own := x.Value.Set(word); err != nil && (own == nil || strings.HasPrefix(own.Error(), "not a range")) {
			list, err = []string{word}, own // the flag reads ranges itself
		}
		for _, one := range list {
			if err == nil {
				err = x.Value.Set(one)
			}
			if slices.Contains(values, one) {
				return fmt.Errorf("%q occurs twice", one)
			}
			values = append(values, one)
		}
		if err != nil && len(words) > 1 {
			err = fmt.Errorf("%q is %w", word, err)
		}
		if err != nil {
			return err
		}
	}
	x.values = values
	return nil
}

// Names returns the names that the flag takes; see kernels.Value.
func (x *gridAxis) Names() []string {
	if v, ok := x.Value.(interface{ Names() []string }); ok {
		return v.Names()
	}
	return nil
}

func (x *gridAxis) Type() string {
	switch kind := x.Value.Type(); kind {
	case "TYPE":
		return "TYPES"
	case "bool":
		return kind
	}
	return "LIST"
}

// isRange matches A..B+STEP and A..BxFACTOR.
var isRange = regexp.MustCompile(`^(\d{1,18})\.\.(\d{1,18})([+x])(\d{1,18})$`)

// expand returns the numbers of a range, and any other word as it is.
func expand(word string) (list []string, err error) {
	m := isRange.FindStringSubmatch(word)
	if m == nil && strings.Contains(word, "..") {
		return nil, errors.New("not FIRST..LAST+STEP or FIRST..LASTxFACTOR, of integers")
	}
	if m == nil {
		return []string{word}, nil
	}
	first, _ := strconv.Atoi(m[1])
	last, _ := strconv.Atoi(m[2])
	by, _ := strconv.Atoi(m[4])
	for n, next := first, 0; n <= last; n = next {
		if next = n + by; m[3] == "x" {
			next = int(min(float64(n)*float64(by), 1e18))
		}
		if list = append(list, strconv.Itoa(n)); len(list) > maxProblems {
			return nil, fmt.Errorf("more than %d numbers", maxProblems)
		}
		if next <= n {
			list = nil
			break
		}
	}
	if list == nil {
		return nil, fmt.Errorf("not a range that grows from %d to %d", first, last)
	}
	return list, nil
}

// each returns the results of make for all combinations. The first flag changes slowest.
func each(axes []*gridAxis, make func() (bench.Op, error)) ([]bench.Op, error) {
	total := 1
	for _, x := range axes {
		if total *= max(len(x.values), 1); total > maxProblems {
			return nil, fmt.Errorf("the flags make %d problems, more than %d", total, maxProblems)
		}
	}
	var list []bench.Op
	for n := range total {
		for i := len(axes) - 1; i >= 0; i-- {
			if x := axes[i]; len(x.values) > 0 {
				if err := x.Value.Set(x.values[n%len(x.values)]); err != nil {
					return nil, err
				}
				n /= len(x.values)
			}
		}
		op, err := make()
		if err != nil {
			return nil, err
		}
		list = append(list, op)
	}
	return list, nil
}
