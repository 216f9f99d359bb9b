// Proven lists the committed SPIR-V modules that no record of a GPU proves as they stand
// (package conformance): `go run ./tools/proven`, from anywhere in the repository.
//
// Each is one line on standard output, its name and the reason. The exit status is 1 if
// there are any, and 0, with nothing printed, if there are none.
//
// With arguments, the outputs of flashvk selftest --share from issues, it adds their records to the
// folder conformance of the working folder, names the changed files, and looks at none.
package main

import (
	"errors"
	"fmt"
	"os"

	records "github.com/flashvk/flashvk/conformance"
	"github.com/flashvk/flashvk/internal/conformance"
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

func add(issue string) error {
	text, err := os.ReadFile(issue)
	if err != nil {
		return err
	}
	run, err := conformance.FromIssue(text)
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
