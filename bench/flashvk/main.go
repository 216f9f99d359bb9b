// Command flashvk lists Vulkan devices, measures and tunes flash attention on
// them, and computes it for files of tensors.
//
// docs/cli.md has its commands, commands.txt their help.
//
// Results go to standard output and nothing else does. An error is one line on
// standard error. The exit status is 0, 1 for a failure, and 2 for a wrong use
// of the command line. An interrupt is a failure: cases that are measured and
// problems that are checked by then are written.
package main

import (
	"cmp"
	"context"
	_ "embed"
	"errors"
	"fmt"
	"io"
	"math"
	"os"
	"os/signal"
	"regexp"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/flashvk/flashvk/internal/bench"
	"github.com/flashvk/flashvk/internal/bench/kernels"
	"github.com/flashvk/flashvk/internal/text"
	"github.com/flashvk/flashvk/pipelines/tnp"
	"github.com/flashvk/flashvk/vk"
)

// Exit codes.
const (
	exitOK = iota
	exitFailure
	exitUsage
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	go func() {
		<-ctx.Done()
		stop() // a second signal ends the program at once
	}()
	os.Exit(run(ctx, os.Args[1:], os.Stdin, os.Stdout, os.Stderr))
}

// run executes the command line args and returns the exit code.
func run(ctx context.Context, args []string, stdin io.Reader, stdout, stderr io.Writer) int {
	out := &checkedWriter{w: stdout}
	a := &app{args: args, stdout: out, stderr: stderr, patience: math.MaxInt64}
	if newProgress(stderr).terminal {
		a.patience = 300 * time.Millisecond
	}
	root := newRoot(a)
	root.SetArgs(args)
	root.SetIn(stdin)
	root.SetOut(out)
	root.SetErr(stderr)
	err := root.ExecuteContext(ctx)
	usage := err != nil && !a.begun || errors.As(err, new(usageError))
	lost := out.err
	if lost != nil {
		lost = fmt.Errorf("writing the results: %w", lost)
	}
	if err = cmp.Or(err, lost); err == nil {
		return exitOK
	}
	message := text.Line(err.Error())
	if errors.Is(err, context.Canceled) {
		message = "interrupted"
		if lost != nil {
			message += ": " + lost.Error()
		}
	}
	fmt.Fprintf(stderr, "flashvk: %s\n", message)
	if usage {
		return exitUsage
	}
	return exitFailure
}

// A usageError is a wrong command line that a command itself finds.
type usageError struct{ err error }

func (e usageError) Error() string { return e.err.Error() }
func (e usageError) Unwrap() error { return e.err }

func usagef(format string, args ...any) error { return usageError{fmt.Errorf(format, args...)} }

// A checkedWriter keeps the first error of writing, which help and tables ignore.
type checkedWriter struct {
	w   io.Writer
	err error
}

func (c *checkedWriter) Write(p []byte) (int, error) {
	if c.err != nil {
		return 0, c.err
	}
	n, err := c.w.Write(p)
	c.err = err
	return n, err
}

// An app has what the commands share.
type app struct {
	args           []string // the command line without the program
	begun          bool     // the command line is one of a command
	stdout, stderr io.Writer

	patience time.Duration // after which a note says that the driver compiles
}

func newRoot(a *app) *cobra.Command {
	root := &cobra.Command{
		Use:                   "flashvk COMMAND",
		Version:               bench.ReadBuildInfo().String(),
		SilenceErrors:         true,
		DisableFlagsInUseLine: true,
		SilenceUsage:          true,
		Args:                  subcommand,
		Run:                   func(*cobra.Command, []string) {},
	}
	root.SetVersionTemplate("{{.Version}}\n")
	usage := root.UsageTemplate() // which names commands twice where a command has a line of its own about its commands
	root.SetUsageTemplate(strings.Replace(usage, "{{if .HasAvailableSubCommands}}\n", "{{if and .HasAvailableSubCommands (not .Runnable)}}\n", 1))
	root.SetFlagErrorFunc(flagError)
	root.AddCommand(newDevices(a), newBench(a), newRun(a), newTune(a), newSelftest(a), newProfile(a), newSweep(a), newPlot(a), newTrain(a), newGenerate(a), newFinetune(a), newPretrain(a), newMerge(a), newVersion(a))
	describe(root)
	completeFlags(root)
	return root
}

func newVersion(a *app) *cobra.Command {
	return a.command(&cobra.Command{Use: "version"}, func(*pflag.FlagSet) {}, func(context.Context) error {
		return writeLine(a.stdout, bench.ReadBuildInfo().String())
	})
}

// command completes a command: add adds its flags, in the order of help, and run runs it.
func (a *app) command(cmd *cobra.Command, add func(f *pflag.FlagSet), run func(ctx context.Context) error) *cobra.Command {
	if cmd.Args == nil {
		cmd.Args = noArgs
	}
	cmd.Flags().SortFlags = false
	add(cmd.Flags())
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		a.begun = true
		return run(cmd.Context())
	}
	return cmd
}

// A value is a flag whose text is read by a parser.
type value[T any] = kernels.Value[T]

// fileVar adds a flag for a file that a command needs.
func fileVar(f *pflag.FlagSet, p *string, name, usage string) {
	f.StringVar(p, name, "", usage)
	cobra.MarkFlagRequired(f, name) // an error says that there is no such flag
}

// exclusive returns a usage error if two flags are given that contradict each other.
func exclusive(f *pflag.FlagSet, one, other string) error {
	if f.Changed(one) && f.Changed(other) {
		return usagef("--%s and --%s contradict each other", one, other)
	}
	return nil
}

// exactly wants n arguments, and says what they are.
func exactly(n int, what string) cobra.PositionalArgs {
	return func(cmd *cobra.Command, args []string) error {
		if len(args) != n {
			return usagef("%s needs %s, not %d", strings.TrimSuffix(below(cmd), ": "), what, len(args))
		}
		return nil
	}
}

// noArgs refuses arguments that are not flags.
func noArgs(cmd *cobra.Command, args []string) error {
	if len(args) > 0 {
		return fmt.Errorf("%sargument %q is not expected", below(cmd), args[0])
	}
	return nil
}

// subcommand is an error, as a command that only has subcommands was called without one of them.
func subcommand(cmd *cobra.Command, args []string) error {
	var names []string
	for _, c := range cmd.Commands() {
		if c.IsAvailableCommand() {
			names = append(names, c.Name())
		}
	}
	list := strings.Join(names, ", ")
	if len(args) == 0 {
		return fmt.Errorf("%sa command is missing: %s; see %s --help", below(cmd), list, cmd.CommandPath())
	}
	cmd.SuggestionsMinimumDistance = 2 // cobra's own, which it sets only where it writes the error
	if near := cmd.SuggestionsFor(args[0]); len(near) > 0 {
		list += "; do you mean " + strings.Join(near, " or ") + "?"
	}
	return fmt.Errorf("%s%q is not one of the commands %s", below(cmd), args[0], list)
}

// below returns the beginning of a message about cmd: its name without the program's, as in
// "bench attention: ".
func below(cmd *cobra.Command) string {
	if cmd == cmd.Root() {
		return ""
	}
	return strings.TrimPrefix(cmd.CommandPath(), cmd.Root().Name()+" ") + ": "
}

// completeFlags makes shells complete the values of the flags of cmd and of the commands below it:
// names, and devices.
func completeFlags(cmd *cobra.Command) {
	for _, c := range cmd.Commands() {
		completeFlags(c)
	}
	cmd.Flags().VisitAll(func(f *pflag.Flag) {
		names := func() []string { return nil }
		if v, ok := f.Value.(interface{ Names() []string }); ok {
			names = v.Names
		}
		if f.Name == "device" {
			names = deviceNumbers
		} else if len(names()) == 0 {
			return
		}
		complete := func(_ *cobra.Command, _ []string, typed string) ([]cobra.Completion, cobra.ShellCompDirective) {
			before := typed[:strings.LastIndex(typed, ",")+1] // of a list
			var list []cobra.Completion
			for _, name := range names() {
				list = append(list, before+name)
			}
			return list, cobra.ShellCompDirectiveNoFileComp
		}
		if err := cmd.RegisterFlagCompletionFunc(f.Name, complete); err != nil {
			panic("flashvk: a flag has two completions")
		}
	})
}

// deviceNumbers returns the numbers of the devices with their names; none where there is no Vulkan.
func deviceNumbers() []string {
	devices, err := vk.List()
	if err != nil {
		return nil
	}
	var list []string
	for _, d := range devices {
		list = append(list, strconv.Itoa(d.Index)+"\t"+d.Name)
	}
	return list
}

// strconvError matches pflag's errors about numbers, which have words of strconv.
var strconvError = regexp.MustCompile(`strconv\.Parse(Int|Uint|Float): parsing "(?:[^"\\]|\\.)*": .*`)

// flagError is the error of a wrong flag. It names flags that are spelt like an unknown one.
func flagError(cmd *cobra.Command, err error) error {
	text := strconvError.ReplaceAllString(err.Error(), "not a number, or out of range")
	unknown, found := strings.CutPrefix(text, "unknown flag: --")
	flags := &cobra.Command{SuggestionsMinimumDistance: 2} // cobra compares the names of commands
	cmd.Flags().VisitAll(func(f *pflag.Flag) {
		flags.AddCommand(&cobra.Command{Use: f.Name, Run: func(*cobra.Command, []string) {}})
	})
	if near := flags.SuggestionsFor(unknown); found && len(near) > 0 {
		text += "; do you mean --" + strings.Join(near, " or --") + "?"
	}
	return errors.New(text)
}

//go:embed commands.txt
var commandTexts string

// describe gives the commands below root the texts of commands.txt.
func describe(root *cobra.Command) {
	sections, all := map[string]kernels.Section{}, map[string]kernels.Kernel{}
	for _, s := range kernels.Sections(commandTexts) {
		sections[s.Name] = s
	}
	for _, k := range kernels.All() {
		all[k.Name] = k
	}
	for _, cmd := range allCommands(root) {
		path := strings.TrimPrefix(cmd.CommandPath(), root.Name()+" ")
		s, own := sections[path]
		k, kernel := all[cmd.Name()]
		command := strings.TrimSuffix(path, " "+k.Name)
		if !own && kernel {
			s = sections[command+" KERNEL"]
		}
		if cmd.Short != "" {
			continue // it says why there is nothing to tune
		}
		words := strings.NewReplacer(wordsOf(k, command)...)
		cmd.Short = words.Replace(s.Title)
		for _, x := range s.Parts {
			*map[string]*string{"long": &cmd.Long, "examples": &cmd.Example}[x[0]] = words.Replace(x[1])
		}
	}
}

// wordsOf returns what stands for the words with a $ in the texts of a command of a kernel.
func wordsOf(k kernels.Kernel, command string) []string {
	words := []string{"$kernel", k.Name, "$title", k.Title, "$examples", k.Example(command)}
	for _, part := range []string{"formulas", "about", "files", "tune"} {
		words = append(words, "$"+part, k.Parts[part])
	}
	backward, presets := "", ""
	if k.Backward {
		backward = fmt.Sprintf("\n  flashvk %s %s --backward --trace trace.json", command, k.Name)
	}
	for _, p := range tnp.Presets() {
		presets += fmt.Sprintf("  %-6s %6d %8d %6d %8d %5d %11d %6d %8d %8d\n", p.Name, p.Layers, p.DModel, p.Heads, p.HeadDim, p.DFF, p.Components, p.Batch, p.Context, p.Targets)
	}
	suites, first := "", ""
	if k.New != nil {
		list := k.New().Suites()
		if first = list[0].Name; len(list) > 1 {
			suites = "\n\nThe suites are"
		}
		for _, s := range list {
			if len(list) > 1 {
				suites += fmt.Sprintf("\n    %-12s %s", s.Name, s.About)
			}
		}
	}
	return append(words, "$backward", backward, "$presets", presets, "$suites", suites, "$suite", first)
}

// allCommands returns a command and those below it, in the order of help.
func allCommands(c *cobra.Command) []*cobra.Command {
	list := []*cobra.Command{c}
	for _, below := range c.Commands() {
		if below.IsAvailableCommand() {
			list = append(list, allCommands(below)...)
		}
	}
	return list
}
