// Converge finds subgroup operations, operations on cooperative matrices and barriers
// that the invocations which must execute them together may not reach together. It
// reads the SPIR-V of every module of package shaders, and asks no device.
//
//	go run ./tools/converge [-v] [-bare] [-under core|subgroup|maximal] [MODULE.spv…]
//
// A finding that judged.txt does not excuse, and a line there that excuses nothing, is
// printed, and the exit status is 1. The classes:
//
//	inside   a branch decides whether an invocation comes to the instruction, and is not
//	         decided alike by all of the subgroup (for barrier(): of the workgroup)
//	after    such a branch has come before, and nothing has brought the invocations together
//	operand  the place or the order of a matrix in memory differs between the invocations
//	merged   (only with -v) such a branch has come before, and the specification promises
//	         that its invocations have come together since; no barrier made them
//
// # Why
//
// Each part of a divided subgroup executes an instruction for itself: the largest of 32
// values is then the largest of some of them. A driver that runs a subgroup in lockstep
// hides the mistake, as lavapipe does.
//
// # What brings invocations together
//
//   - A barrier, of the workgroup or of the subgroup, that all of its invocations reach.
//   - The end of a construct, an if or a loop, that the whole workgroup entered together, and
//     left there. No more is promised by SPIR-V ("Uniform control flow"): once subgroups
//     have gone different ways, as by a `continue` that each decides for itself, an if
//     inside one of them need not end together.
//   - With the execution mode SubgroupUniformControlFlowKHR, the end of a construct that the
//     subgroup entered together, and left there. With MaximallyReconvergesKHR, the end of any construct,
//     for those who entered it together. A module that declares one is judged by it; -under
//     judges all as if, and -bare as if none declared any: as devices run them that have neither.
//
// # What is the same for all
//
// Values have three levels: the same in the workgroup, the same in the subgroup, divergent.
// Calls are analysed one by one, each with its own arguments.
//
//	the workgroup  constants, specialization and push constants, the workgroup's number, sizes; what is
//	               loaded from a buffer that the module never stores to, at such an index
//	the subgroup   gl_SubgroupID; the result of a reduction, vote, broadcast or ballot; what is loaded from shared memory,
//	               at such an index: it is assumed to lie between the same two barriers for all
//	divergent      the invocation's numbers, elements of matrices, atomics, shuffles and scans, and what
//	               is loaded from a buffer that the module stores to
//
// A result has the level of its worst operand. A variable has the worst level of all values
// that are stored in it, and of the branches that decide whether a value is stored. All of an
// array or struct is one variable.
//
// Not seen: two bindings that are given one buffer; what a compiler makes of the SPIR-V against its
// specification.
package main

import (
	"flag"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/flashvk/flashvk/shaders"
)

func main() {
	verbose := flag.Bool("v", false, "list everything: every cause, every module, what is judged, and what is merged")
	under := flag.String("under", "core", "judge every module by the promise of core, subgroup or maximal")
	bare := flag.Bool("bare", false, "judge modules without the modes that they declare, as devices run them that lack these")
	flag.Parse()
	promise, ok := promises[*under]
	if !ok {
		flag.Usage()
		os.Exit(2)
	}
	ok, err := run(*verbose, *bare, promise, flag.Args())
	if err != nil {
		fmt.Fprintf(os.Stderr, "converge: %v\n", err)
	}
	if !ok || err != nil {
		os.Exit(1)
	}
}

var promises = map[string]promise{"core": core, "subgroup": bySubgroup, "maximal": maximal}

// run prints the findings and reports whether there are none.
func run(verbose, bare bool, promise promise, files []string) (ok bool, err error) {
	j, err := parseJudged("judged.txt", judgedText)
	if err != nil {
		return false, err
	}
	modules, err := load(files)
	if err != nil {
		return false, err
	}
	r, err := report(modules, j, bare, promise)
	if err != nil {
		return false, err
	}
	if len(files) == 0 {
		r.problems = append(r.problems, j.unused()...)
	}
	for _, line := range r.lines(verbose) {
		fmt.Println(line)
	}
	for _, line := range r.problems {
		fmt.Println(line)
	}
	if verbose {
		fmt.Fprintf(os.Stderr, "converge: %d modules, %s\n", len(modules), r.summary())
	}
	return len(r.open) == 0 && len(r.problems) == 0, nil
}

func load(files []string) (map[string][]byte, error) {
	modules := map[string][]byte{}
	if len(files) == 0 {
		for _, v := range shaders.Variants() {
			m, err := shaders.Get(v.Kernel, v.Type)
			if err != nil {
				return nil, err
			}
			modules[m.Name] = m.SPIRV
		}
		return modules, nil
	}
	for _, path := range files {
		code, err := os.ReadFile(path)
		if err != nil {
			return nil, err
		}
		modules[strings.TrimSuffix(filepath.Base(path), ".spv")] = code
	}
	return modules, nil
}

// A result is the findings of all modules, and in which modules each is.
type result struct {
	open, judged, merged map[finding][]string
	problems             []string
}

// report analyses modules.
func report(modules map[string][]byte, j *judged, bare bool, promise promise) (*result, error) {
	r := &result{open: map[finding][]string{}, judged: map[finding][]string{}, merged: map[finding][]string{}}
	for _, name := range slices.Sorted(maps.Keys(modules)) {
		m, err := parse(modules[name])
		if err != nil {
			return nil, fmt.Errorf("%s: %w", name, err)
		}
		if bare {
			clear(m.modes)
		}
		for _, named := range j.cases(m) {
			list, err := analyse(m, named, promise)
			if err != nil {
				return nil, fmt.Errorf("%s: %w", name, err)
			}
			for _, f := range list {
				into := r.open
				switch {
				case f.class == merged:
					into = r.merged
				case j.excuses(f):
					into = r.judged
				}
				if !slices.Contains(into[f], name) {
					into[f] = append(into[f], name)
				}
			}
		}
	}
	return r, nil
}

// lines tells the findings: those that are open; if verbose, all of them, with all causes.
func (r *result) lines(verbose bool) []string {
	lines := tell(r.open, "", verbose)
	if verbose {
		lines = append(lines, tell(r.judged, "judged: ", verbose)...)
		lines = append(lines, tell(r.merged, "", verbose)...)
	}
	return lines
}

// tell tells findings, a line for each place.
func tell(found map[finding][]string, prefix string, verbose bool) []string {
	list, lines := slices.SortedFunc(maps.Keys(found), compareFindings), []string(nil)
	for len(list) > 0 {
		f := list[0]
		n := 1
		for n < len(list) && list[n].class == f.class && list[n].place == f.place {
			n++
		}
		var causes, modules, details []string
		for _, g := range list[:n] {
			causes = append(causes, g.cause.String())
			modules = append(modules, found[g]...)
			details = append(details, fmt.Sprintf("    since %v%s in %s", g.cause, at(g.cause), strings.Join(found[g], " ")))
		}
		slices.Sort(modules)
		line := fmt.Sprintf("%s%s %v%s", prefix, f.class, f.place, at(f.place))
		if verbose {
			lines = append(append(lines, line), details...)
		} else {
			lines = append(lines, fmt.Sprintf("%s since %s, in %s", line, few(causes), few(slices.Compact(modules))))
		}
		list = list[n:]
	}
	return lines
}

// at is the line of a place, if it is known.
func at(p place) string {
	if p.line == "" {
		return ""
	}
	return " (" + p.line + ")"
}

// few names the first two of a list.
func few(list []string) string {
	if len(list) <= 2 {
		return strings.Join(list, " and ")
	}
	return fmt.Sprintf("%s, %s and %d more", list[0], list[1], len(list)-2)
}

// summary counts places.
func (r *result) summary() string {
	count := func(found map[finding][]string, classes ...class) int {
		places := map[place]bool{}
		for f := range found {
			if slices.Contains(classes, f.class) {
				places[f.place] = true
			}
		}
		return len(places)
	}
	return fmt.Sprintf("places with findings: inside %d, after %d, operand %d; judged %d; merged %d", count(r.open, inside), count(r.open, after),
		count(r.open, operand), count(r.judged, inside, after, operand), count(r.merged, merged))
}
