package main

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
)

func TestImportProblems(t *testing.T) {
	good := []pkg{
		{path: "dtype"},
		{path: "internal/guard", imports: []string{"vk", "dtype"}},
		{path: "internal/attention/ondevice", imports: []string{"attention", "internal/attention/attntest", "internal/guard", "vk"}},
		{path: "shaders", testImports: []string{"shaders/internal/compile"}},
		{path: "shaders/layouttest", imports: []string{"shaders", "shaders/reflect"}},
		{path: "vk", imports: []string{"dtype"}, testImports: []string{"vk/vktest"}},
		{path: "vk/vktest", imports: []string{"vk"}},
		{path: "attention/philox"},
		{path: "attention/ref", imports: []string{"attention"}},
		{path: "internal/pipelines/gmm/ref", imports: []string{"pipelines/gmm", "internal/pipelines/tolerance"}},
		{path: "internal/vk/argument", imports: []string{"vk", "dtype"}},
		{path: "attention/attntest", imports: []string{"attention", "attention/ref", "dtype"}},
		{path: "attention", imports: []string{"vk", "shaders", "dtype", "attention/philox"},
			testImports: []string{"attention/attntest", "attention/ref", "vk/vktest", "shaders/layouttest"}},
		{path: "pipelines/gemm", imports: []string{"vk", "shaders"}},
		{path: "pipelines/gemm/ref", imports: []string{"dtype"}},
		{path: "pipelines/norm", imports: []string{"vk"}},
		{path: "pipelines/norm/ref", imports: []string{"pipelines/norm"}},
		{path: "pipelines/tnp", imports: []string{"pipelines/gemm", "attention"}},
		{path: "conformance", imports: []string{"chips", "shaders", "vk"}},
		{path: "bench", imports: []string{"attention", "attention/ref", "vk", "conformance"}},
		{path: "bench/flashvk", imports: []string{"bench", "pipelines/tnp"}},
		{path: "tools/check"},
		{path: "tools/proven", imports: []string{"conformance", "vk"}},
	}
	if got := importProblems(good); got != nil {
		t.Errorf("problems of a good tree: %q", got)
	}
	for _, tt := range []struct {
		pkg  pkg
		want string
	}{
		{pkg{path: "vk", imports: []string{"shaders"}}, "vk imports shaders: vk imports nothing of ours but dtype and what is as small"},
		{pkg{path: "vk/vktest", imports: []string{"attention"}}, "vk/vktest imports attention: vk imports nothing of ours but dtype and what is as small"},
		{pkg{path: "shaders/reflect", imports: []string{"dtype"}}, "shaders/reflect imports dtype: shaders imports nothing of ours"},
		{pkg{path: "dtype", imports: []string{"vk"}}, "dtype imports vk, which does not stand below it"},
		{pkg{path: "attention", imports: []string{"bench"}}, "attention imports bench, which does not stand below it"},
		{pkg{path: "attention", imports: []string{"attention/ref"}}, "attention imports attention/ref, which does not stand below it"},
		{pkg{path: "pipelines/gemm", imports: []string{"pipelines/tnp"}}, "pipelines/gemm imports pipelines/tnp, which does not stand below it"},
		{pkg{path: "attention/ref", imports: []string{"vk"}},
			"attention/ref imports vk: references and suites use no device"},
		{pkg{path: "attention/attntest", testImports: []string{"vk/vktest"}},
			"attention/attntest imports vk/vktest: references and suites use no device"},
		{pkg{path: "pipelines/norm/ref", imports: []string{"pipelines/norm", "vk"}},
			"pipelines/norm/ref imports vk: references and suites use no device"},
		{pkg{path: "conformance", imports: []string{"bench"}}, "conformance imports bench, which does not stand below it"},
		{pkg{path: "internal/pipelines/gmm/ref", imports: []string{"vk"}}, "internal/pipelines/gmm/ref imports vk: references and suites use no device"},
		{pkg{path: "internal/vk/argument", imports: []string{"internal/bench/trial"}}, "internal/vk/argument imports internal/bench/trial: vk imports nothing of ours but dtype and what is as small"},
		{pkg{path: "util"}, "util has no place in the order of packages (tools/check/imports.go)"},
	} {
		pkgs := append(slices.DeleteFunc(slices.Clone(good), func(p pkg) bool { return p.path == tt.pkg.path }), tt.pkg)
		if got := importProblems(pkgs); !slices.Contains(got, tt.want) {
			t.Errorf("%+v: problems are %q, want %q", tt.pkg, got, tt.want)
		}
	}
}

func TestLinkProblems(t *testing.T) {
	for _, p := range []string{"testing", "testing/iotest", "github.com/stretchr/testify/require", "github.com/flashvk/flashvk/internal/vk/vktest"} {
		if got := linkProblems([]string{"fmt", p, "gonum.org/v1/gonum/mat"}); len(got) != 1 || !strings.HasPrefix(got[0], "bench/flashvk links "+p+", which is for tests") {
			t.Errorf("%s: %q", p, got)
		}
	}
	// The list is the program's, not that of an empty pattern.
	r, err := openRepo()
	if err != nil {
		t.Fatal(err)
	}
	linked, err := r.linked()
	if err != nil {
		t.Fatal(err)
	}
	if !slices.Contains(linked, "github.com/flashvk/flashvk/"+program) || !slices.Contains(linked, "github.com/flashvk/flashvk/internal/guard") {
		t.Errorf("the program links %q", linked)
	}
	if got := linkProblems(linked); got != nil {
		t.Errorf("problems of the program: %q", got)
	}
}

func TestSpecialImport(t *testing.T) {
	for _, tt := range []struct {
		file, imported string
		bad            bool
	}{
		{"vk/ext.go", "C", false}, {"vk/ext_caps.go", "C", false}, {"vk/cmd.go", "C", true}, {"bench/ext.go", "C", true},
		{"vk/cmd.go", "unsafe", false}, {"vk/cmd_test.go", "unsafe", false}, {"vk/vktest/open.go", "unsafe", true},
		{"attention/fwd.go", "unsafe", true}, {"attention/fwd.go", "fmt", false},
	} {
		if got := specialImport(tt.file, tt.imported); (got != "") != tt.bad {
			t.Errorf("%s imports %s: %q", tt.file, tt.imported, got)
		}
	}
}

func TestBudget(t *testing.T) {
	function := func(lines int) string { return "func f() {\n" + strings.Repeat("\tg()\n", lines-2) + "}\n" }
	table := func(lines int) string {
		return "func f() {\n\tg([]int{\n" + strings.Repeat("\t\t1,\n", lines) + "\t})\n}\n"
	}
	closures := func(lines int) string {
		return "func f() {\n\tg([]func(){\n\t\tfunc() {\n" + strings.Repeat("\t\t\tg()\n", lines) + "\t\t},\n\t})\n}\n"
	}
	for _, tt := range []struct {
		name, file, text, want string
	}{
		{"short", "a.go", "package a\n" + function(80), ""},
		{"function", "a.go", "package a\n" + function(81), "a.go:2: f has 81 lines, over 80"},
		{"function with a reason", "a.go", "// Long: one table.\n\npackage a\n" + function(81), ""},
		{"empty reason", "a.go", "// Long: \n\npackage a\n" + function(81), "a.go:4: f has 81 lines, over 80"},
		{"a table is no code", "a.go", "package a\n" + table(100), ""},
		{"functions in a table are", "a.go", "package a\n" + closures(100), "a.go:2: f has 104 lines, over 80"},
		{"file", "a.go", "package a\n" + strings.Repeat("\n", 500), "a.go has 501 lines, over 500"},
		{"generated", "a.go", "// Code generated by x; DO NOT EDIT.\npackage a\n" + strings.Repeat("\n", 500), ""},
		{"kernel", "shaders/a.comp", strings.Repeat("\n", 250), ""},
		{"long kernel", "shaders/a.comp", strings.Repeat("\n", 251), "shaders/a.comp has 251 lines, over 250"},
		{"syntax", "a.go", "package\n", "a.go:1:9: expected 'IDENT'"},
	} {
		got := strings.Join(budgetProblems(tt.file, tt.text), "\n")
		if tt.want == "" && got != "" || !strings.HasPrefix(got, tt.want) {
			t.Errorf("%s: problems are %q, want %q", tt.name, got, tt.want)
		}
	}
}

func TestSizes(t *testing.T) {
	for name, want := range map[string]string{
		"README.go": "files, tests, examples, tools", "vk/kit/kit.go": "devices, and what kernels share",
		"vkx/a.go": "files, tests, examples, tools", "pipelines/tnp/gp/a.go": "trainer and models",
		"pipelines/gemm/a.go": "other kernels", "tests/gradients/a_test.go": "one engine for every proof",
	} {
		if got := wings[wingOf(name)].name; got != want {
			t.Errorf("%s is in %q, want %q", name, got, want)
		}
	}
	files := map[string]string{
		"vk/a.go": "a\nb\n", "vk/a_test.go": "a\n", "shaders/a.comp": "a\nb\nc\n", "shaders/lib/b.glsl": "a\n",
		"vk/testdata/a.go": "a\n", "vk/a.md": "a\n",
	}
	list, err := sizes(slices.Collect(maps.Keys(files)), func(name string) (string, error) { return files[name], nil })
	if err != nil {
		t.Fatal(err)
	}
	core, glsl := wingOf("vk/a.go"), wingOf("shaders/a.comp")
	if list[core] != (size{code: 2, tests: 1}) || list[glsl] != (size{glsl: 4}) {
		t.Errorf("sizes are %v", list)
	}
	if got := sizeProblems(list); got != nil {
		t.Errorf("problems are %q, want none", got)
	}
	list[core].tests, list[glsl].glsl = wings[core].goMax, wings[glsl].glMax+1
	if got := sizeProblems(list); len(got) != 2 || !strings.Contains(got[0], "lines of Go") || !strings.Contains(got[1], "lines of GLSL") {
		t.Errorf("problems are %q, want Go and GLSL past the budget", got)
	}
}

func TestHostProblems(t *testing.T) {
	// Put together here, so that this file names no mirror either.
	domain := "debian" + ".org"
	for _, tt := range []struct {
		text string
		want string
	}{
		{"see http://deb." + domain + "/debian for it", "f:1: names the package mirror http://deb." + domain},
		{"ok\nftp.de." + domain, "f:2: names the package mirror ftp.de." + domain},
		{"deb http://mirror.corp.example:80" + "/debian bookworm main", "f:1: names the package mirror http://mirror.corp.example:80" + "/debian"},
		{"GOPROXY=https://proxy.corp.example", "f:1: names the package mirror proxy.corp.example"},
		{"deb http://mirror.test/debian and http://localhost:9/debian", ""},
		{"Debian, https://www.khronos.org/debian-notes, debianutils", ""},
		{"\xff\xfe http://deb." + domain, ""},
	} {
		got := strings.Join(hostProblems("f", tt.text, []string{"proxy.corp.example"}), "\n")
		if tt.want == "" && got != "" || !strings.HasPrefix(got, tt.want) {
			t.Errorf("%q: problems are %q, want %q", tt.text, got, tt.want)
		}
	}
}

func TestBinaryProblems(t *testing.T) {
	png, spirv := "\x89PNG\r\n\x1a\n\x00", "\x03\x02\x23\x07\x00"
	for _, tt := range []struct {
		name, text string
		bad        bool
	}{
		{"README.md", "µ is two bytes", false}, {"shaders/spv/a.spv", spirv, false}, {"docs/a.png", png, false},
		{"check", "\x7fELF\x02\x01\x01\x00", true}, {"flashvk.exe", "MZ\x90\x00", true}, {"flashvk", "\xcf\xfa\xed\xfe\x07", true},
		{"a.tar.gz", "\x1f\x8b\x08", true}, {"a.txt", "a\x00", true},
		{"shaders/spv/a.spv", png, true}, {"a.png", "\x7fELF\x00", true}, {"a.jpg", png, true},
	} {
		if got := binaryProblems(tt.name, tt.text); (got != nil) != tt.bad {
			t.Errorf("%s, %q: %q", tt.name, tt.text, got)
		}
	}
}

func TestShellOf(t *testing.T) {
	for first, want := range map[string]string{
		"#!/bin/sh": "sh", "#!/bin/bash -eu": "bash", "#!/usr/bin/env bash": "bash", "#! /bin/dash": "sh",
		"#!/usr/bin/env python3": "", "#!/usr/bin/awk -f": "", "package main": "", "": "", "#!": "",
	} {
		if got := shellOf(first + "\nx"); got != want {
			t.Errorf("%q: shell is %q, want %q", first, got, want)
		}
	}
}

func TestFindings(t *testing.T) {
	lines := []string{"# github.com/flashvk/flashvk/vk", "go: downloading a v1", "vk/cmd.go:3:2: bad", "--- FAIL: TestCurrent (0.1s)",
		"    shaders_test.go:52: a.spv is stale", "FAIL", "FAIL\tpkg\t0.1s", "exit status 1"}
	want := []string{"vk/cmd.go:3:2: bad", "shaders_test.go:52: a.spv is stale"}
	if got := findings(lines, "x"); !slices.Equal(got, want) {
		t.Errorf("findings are %q, want %q", got, want)
	}
	if got := findings([]string{"FAIL"}, "x"); fmt.Sprint(got) != "[x failed and did not say why]" {
		t.Errorf("findings are %q", got)
	}
}
