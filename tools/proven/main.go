// Proven lists the committed SPIR-V modules that no record of a GPU proves as they stand
// (package conformance): `go run ./tools/proven`, from anywhere in the repository.
//
// Each is one line on standard output, its name and the reason. The exit status is 1 if
// there are any, and 0, with nothing printed, if there are none.
//
// With arguments, files with issues, it adds what they have to the repository in the working folder,
// and names the changed files: the record of flashvk selftest --share goes to the folder conformance,
// each row of flashvk tune show --share to the built-in table of its kernel, where a measurement is
// no argument yet for all problems that the row matches. That is for people to judge.
package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"go/format"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"

	records "github.com/flashvk/flashvk/conformance"
	_ "github.com/flashvk/flashvk/internal/call" // all kernels, with their tables
	"github.com/flashvk/flashvk/internal/conformance"
	"github.com/flashvk/flashvk/internal/text"
	"github.com/flashvk/flashvk/internal/vk/table"
	"github.com/flashvk/flashvk/vk"
	"github.com/flashvk/flashvk/vk/kit"
)

func main() {
	if len(os.Args) > 1 {
		for _, issue := range os.Args[1:] {
			if err := add(issue); err != nil {
				fmt.Fprintf(os.Stderr, "proven: %s: %v\n", issue, err)
				os.Exit(2)
			}
		}
		return
	}
	list, err := conformance.Read(records.Records)
	committed, errModules := conformance.Committed()
	if err = errors.Join(err, errModules); err != nil {
		fmt.Fprintf(os.Stderr, "proven: %v\n", err)
		os.Exit(2)
	}
	lines := conformance.Unproven(list, committed)
	for _, line := range lines {
		fmt.Println(line)
	}
	if len(lines) > 0 {
		os.Exit(1)
	}
}

// add adds what an issue has.
func add(file string) error {
	data, err := os.ReadFile(file)
	if err != nil {
		return err
	}
	issue := string(data)
	if text.Unfold(issue, text.FoldRows) != "" {
		return addRows(os.Stdout, ".", issue)
	}
	run, err := conformance.FromIssue(issue)
	if err != nil {
		return err
	}
	path, err := conformance.File("conformance", run)
	if err != nil {
		return err
	}
	if _, err := conformance.MergeFile(path, run); err != nil {
		return err
	}
	fmt.Println(path)
	return nil
}

// addRows writes the rows of an issue into the tables below root, and says of each where it is, or why it
// is nowhere.
func addRows(w io.Writer, root, issue string) error {
	var caps vk.Caps
	if err := json.Unmarshal([]byte(text.Unfold(issue, text.FoldDevice)), &caps); err != nil {
		return fmt.Errorf("the fold %s: %w", text.FoldDevice, err)
	}
	tuning, err := kit.LoadTuning(strings.NewReader(text.Unfold(issue, text.FoldRows)), &caps)
	if err != nil {
		return err
	}
	for _, x := range table.BuiltIns(tuning, &caps) {
		place := ""
		if x.Err == nil {
			place, x.Err = addRow(root, &x, text.Line(fmt.Sprintf("%s, %s %s: %s in %.4g µs", caps.Name, caps.DriverName, caps.DriverInfo, x.Problem, x.NS/1e3)))
		}
		if x.Err != nil {
			place = "not added: " + x.Err.Error()
		}
		fmt.Fprintf(w, "%s %s, %s, %s: %s\n", x.Kernel, x.Pass, x.Problem, x.Config, place)
	}
	return nil
}

// sources are the files that have built-in rows.
var sources = []string{"attention/*_table.go", "internal/pipelines/*/*/tuning.go", "pipelines/*/*.go"}

// addRow writes a row, with a note, before the one that decides today, or in its place if the two match the
// same problems. It returns the file and the line.
func addRow(root string, x *table.BuiltIn, note string) (place string, err error) {
	for _, pattern := range sources {
		names, err := filepath.Glob(filepath.Join(root, pattern))
		if err != nil {
			return "", err
		}
		for _, name := range names {
			data, err := os.ReadFile(name)
			if err != nil {
				return "", err
			}
			lines := strings.Split(string(data), "\n")
			at := slices.IndexFunc(lines, func(line string) bool { return strings.HasPrefix(strings.TrimSpace(line), x.Before+",") })
			if at < 0 {
				continue
			}
			end := at
			if matches(x.Row) == matches(x.Before) {
				end++
			} else if strings.Contains(string(data), matches(x.Row)) {
				return "", fmt.Errorf("%s has a row for the same problems", name)
			}
			lines = slices.Replace(lines, at, end, x.Row+", // "+note)
			formatted, err := format.Source([]byte(strings.Join(lines, "\n")))
			if err != nil {
				return "", err
			}
			return fmt.Sprintf("%s:%d", name, at+1), os.WriteFile(name, formatted, 0o666)
		}
	}
	return "", fmt.Errorf("no table has the row %s", x.Before)
}

// matches returns what a row says of problems and of their path.
func matches(row string) string {
	problems, config, _ := strings.Cut(row, `words("`)
	path, _, _ := strings.Cut(config, " ")
	return problems + `words("` + path + " "
}
