package main

import (
	"fmt"
	"strings"
)

func checkFormat(r *repo) ([]string, error) {
	lines, ok, err := r.command(nil, "gofmt", append([]string{"-s", "-l"}, r.goFiles()...)...)
	if err != nil || !ok {
		return lines, err // syntax errors
	}
	for i := range lines {
		lines[i] += " is not formatted: gofmt -s -w " + lines[i]
	}
	return lines, nil
}

func checkVet(r *repo) ([]string, error) {
	lines, ok, err := r.command(nil, "go", "vet", "-tags=lab", "./...")
	if err != nil || ok {
		return nil, err // a C compiler's warnings are printed too, and are no findings
	}
	return findings(lines, "go vet"), nil
}

func checkStaticcheck(r *repo) ([]string, error) {
	program := "honnef.co/go/tools/cmd/staticcheck@" + staticcheckVersion
	lines, ok, err := r.command(nil, "go", "run", program, "-version")
	if err != nil {
		return nil, err
	}
	if !ok {
		return nil, fmt.Errorf("cannot get %s (offline?): %s", program, last(lines))
	}
	lines, ok, err = r.command(nil, "go", "run", program, "./...")
	if err != nil || ok {
		return nil, err
	}
	return findings(lines, "staticcheck"), nil
}

// checkShaders has the tests of ./shaders compile and validate; they say what is
// wrong. -count=1 because the answer depends on the compiler too, which go test does
// not see.
func checkShaders(r *repo) ([]string, error) {
	lines, ok, err := r.command([]string{"FLASHVK_REQUIRE_TOOLS=1"}, "go", "test", "-count=1", "-vet=off",
		"-run", "TestCurrent|TestValid|TestNames|TestGet", "./shaders")
	if err != nil || ok {
		return nil, err
	}
	return findings(lines, "go test ./shaders"), nil
}

// checkConverge has tools/converge read the committed SPIR-V.
func checkConverge(r *repo) ([]string, error) {
	lines, ok, err := r.command(nil, "go", "run", "./tools/converge")
	if err != nil || ok {
		return nil, err
	}
	return findings(lines, "tools/converge"), nil
}

// checkProven lists the modules that no GPU's record proves. Who changes a shader without
// a GPU at hand makes them; who closes the issue proves them.
func checkProven(r *repo) ([]string, error) {
	lines, ok, err := r.command(nil, "go", "run", "./tools/proven")
	if err != nil || ok {
		return nil, err
	}
	return findings(lines, "go run ./tools/proven"), nil
}

// findings drops from a failed program's output the lines that are no finding. The
// result is never empty.
func findings(lines []string, program string) []string {
	var list []string
	for _, line := range lines {
		text := strings.TrimPrefix(strings.TrimSpace(line), "vet: ")
		switch {
		case text == "FAIL", text == "PASS", strings.HasPrefix(text, "exit status "):
		case strings.HasPrefix(text, "# "), strings.HasPrefix(text, "FAIL\t"), strings.HasPrefix(text, "ok  \t"),
			strings.HasPrefix(text, "--- "), strings.HasPrefix(text, "=== "), strings.HasPrefix(text, "go: downloading "):
		default:
			list = append(list, text)
		}
	}
	if list == nil {
		return []string{program + " failed and did not say why"}
	}
	return list
}

func last(lines []string) string {
	if len(lines) == 0 {
		return "no output"
	}
	return lines[len(lines)-1]
}
