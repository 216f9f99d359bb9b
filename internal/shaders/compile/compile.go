// Package compile turns GLSL kernels into SPIR-V with glslc, and keeps the
// manifest that says which sources a SPIR-V file was made from.
package compile

import (
	"bytes"
	"errors"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"

	"github.com/flashvk/flashvk/internal/parallel"
	"github.com/flashvk/flashvk/internal/spirv"
)

// A Row is one module to be compiled.
type Row struct {
	Name    string   // of the module
	File    string   // source, relative to the shader folder
	Defines []string // NAME or NAME=VALUE
	Env     string   // glslc --target-env
	Loose   bool     // leaves out that invocations reconverge maximally: a mutation
}

// flags are the compiler's arguments for a row, without the source's and the
// output's name. They are part of the hash in the manifest.
//
// -O0: spirv-opt breaks cooperative-matrix modules, and drivers optimize anyway.
func (r Row) flags() []string {
	f := []string{"-O0", "-fshader-stage=compute", "--target-env=" + r.Env}
	for _, d := range r.Defines {
		f = append(f, "-D"+d)
	}
	return f
}

// A Compiler is a glslc program.
type Compiler struct {
	Path    string
	Version string // one line
}

// New returns the compiler at path, or of this name in PATH.
func New(path string) (*Compiler, error) {
	path, err := exec.LookPath(path)
	if err != nil {
		return nil, err
	}
	if path, err = filepath.Abs(path); err != nil { // Compile starts it in a folder of its own
		return nil, err
	}
	out, err := exec.Command(path, "--version").CombinedOutput()
	if err != nil {
		return nil, fmt.Errorf("%s --version: %w: %s", path, err, bytes.TrimSpace(out))
	}
	var lines []string
	for line := range strings.Lines(string(out)) {
		if line = strings.Join(strings.Fields(line), " "); line != "" {
			lines = append(lines, line)
		}
	}
	return &Compiler{Path: path, Version: strings.Join(lines, ", ")}, nil
}

// Compile returns the SPIR-V of rows of the shader folder dir. The error is the compiler's own
// output, one problem per line as path:line: text, with paths relative to the parent of dir. What
// rows have in common (one file, several types) is there once.
//
// A process compiles many rows, since glslc reads its built-in functions for longer than most of
// our kernels.
func (c *Compiler) Compile(dir string, rows ...Row) ([][]byte, error) {
	const most = 32 // rows of a process
	like := map[string][]int{}
	for i, r := range rows {
		like[r.Env] = append(like[r.Env], i)
	}
	var pieces [][]int
	for _, env := range slices.Sorted(maps.Keys(like)) {
		pieces = slices.AppendSeq(pieces, slices.Chunk(like[env], most))
	}
	code, failed := make([][]byte, len(rows)), make([]error, len(pieces))
	parallel.For(len(pieces), func(n int) { failed[n] = c.together(dir, rows, pieces[n], code) })
	err := errors.Join(failed...)
	if err == nil {
		return code, nil
	}
	var lines []string
	for line := range strings.SplitSeq(err.Error(), "\n") {
		if !slices.Contains(lines, line) {
			lines = append(lines, line)
		}
	}
	return code, errors.New(strings.Join(lines, "\n"))
}

// together compiles the rows of a piece, which have one Env, in one process, into code. Macros are
// lines of the sources there.
func (c *Compiler) together(dir string, rows []Row, piece []int, code [][]byte) error {
	tmp, err := os.MkdirTemp("", "flashvk-glslc-*")
	if err != nil {
		return err
	}
	defer os.RemoveAll(tmp)
	args := append([]string{"-c"}, Row{Env: rows[piece[0]].Env}.flags()...)
	for _, i := range piece {
		source, err := flatten(dir, rows[i].File)
		if err != nil {
			return err
		}
		name := fmt.Sprintf("%d.comp", i)
		if err := os.WriteFile(filepath.Join(tmp, name), define(source, rows[i].Defines), 0o666); err != nil {
			return err
		}
		args = append(args, name)
	}
	cmd := exec.Command(c.Path, args...)
	cmd.Dir = tmp
	out, err := cmd.CombinedOutput()
	if err != nil {
		if text := bytes.TrimSpace(out); len(text) > 0 {
			return fmt.Errorf("%s", text)
		}
		return fmt.Errorf("%s %s: %w", c.Path, rows[piece[0]].File, err)
	}
	for _, i := range piece {
		raw, err := os.ReadFile(filepath.Join(tmp, fmt.Sprintf("%d.comp.spv", i)))
		if err != nil {
			return err
		}
		list, err := spirv.Decode(raw)
		if err != nil {
			return fmt.Errorf("%s: %w", rows[i].File, err)
		}
		if list = dropAddressNames(list); !rows[i].Loose {
			list = reconverge(list)
		}
		code[i] = spirv.Encode(raw, list)
	}
	return nil
}

var version = regexp.MustCompile(`(?m)^#version.*\n`)

// define adds the macros NAME or NAME=VALUE to a flattened source, as -D defines them: behind the
// line #version, after which flatten numbers lines anew.
func define(source []byte, macros []string) []byte {
	at := 0
	if line := version.FindIndex(source); line != nil {
		at = line[1]
	}
	var lines []byte
	for _, macro := range macros {
		name, value, _ := strings.Cut(macro, "=")
		lines = fmt.Appendf(lines, "#define %s %s\n", name, value)
	}
	return slices.Concat(source[:at], lines, source[at:])
}

// Find returns the path of a tool ("glslc", "spirv-val"): the environment
// variable FLASHVK_GLSLC or FLASHVK_SPIRV_VAL, else what tools/toolchain of the
// repository root says. The toolchain folder is only made if build is set.
func Find(root, tool string, build bool) (string, error) {
	variable := "FLASHVK_" + strings.ToUpper(strings.ReplaceAll(tool, "-", "_"))
	if path := os.Getenv(variable); path != "" {
		return path, nil
	}
	args := []string{"--get", variable}
	if !build {
		args = append([]string{"--no-build"}, args...)
	}
	var stderr bytes.Buffer
	cmd := exec.Command(filepath.Join(root, "tools", "toolchain"), args...)
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		if text := strings.TrimSpace(stderr.String()); text != "" {
			return "", errors.New(text)
		}
		return "", fmt.Errorf("%s: %w", cmd.Path, err)
	}
	path := strings.TrimSpace(string(out))
	if path == "" {
		return "", fmt.Errorf("no %s: set %s, or run tools/toolchain", tool, variable)
	}
	return path, nil
}

// dropAddressNames removes the debug names that hold an address of the
// compiler's memory: glslang writes one into the mangled name of a function
// whose argument has an array sized by a specialization constant
// ("product_nt(struct-TileNT-f1[s0x5555573]1;"), and so makes other bytes in
// every run. Nothing reads the names of functions.
func dropAddressNames(list []spirv.Instruction) []spirv.Instruction {
	return slices.DeleteFunc(list, func(in spirv.Instruction) bool {
		return in.Op == spirv.OpName && strings.Contains(spirv.Text(in.Args[1:]), "[s0x")
	})
}

// reconverge makes a module whose invocations work together in subgroups, by operations
// of subgroups or on matrices, reconverge maximally: after a branch that invocations
// decide each for itself, they are together again where the source says so. Without it
// Vulkan leaves open which of them meet in an operation behind such a branch. It is done
// here and not in the sources so that no kernel can forget it. vk.NewKernel takes it out again for devices
// that lack VK_KHR_shader_maximal_reconvergence.
func reconverge(list []spirv.Instruction) []spirv.Instruction {
	const firstGroup, lastGroup, cooperativeMatrix = 61, 68, 6022 // capabilities; the groups are subgroup operations
	extensions, modes, together := 0, 0, false
	var function uint32
	for i, in := range list {
		switch in.Op {
		case spirv.OpCapability:
			c := in.Args[0]
			together = together || firstGroup <= c && c <= lastGroup || c == cooperativeMatrix
			extensions = i + 1
		case spirv.OpEntryPoint:
			function, modes = in.Args[1], i+1
		}
	}
	if !together || modes == 0 {
		return list
	}
	return slices.Concat(list[:extensions],
		[]spirv.Instruction{{Op: spirv.OpExtension, Args: spirv.Literal(spirv.Reconvergence)}}, list[extensions:modes],
		[]spirv.Instruction{{Op: spirv.OpExecutionMode, Args: []uint32{function, spirv.ModeMaximallyReconverges}}}, list[modes:])
}
