package tests

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/flashvk/flashvk/internal/shaders/compile/compiletest"
	"github.com/flashvk/flashvk/internal/shaders/mutate"
	"github.com/flashvk/flashvk/internal/vk/vktest"
	"github.com/flashvk/flashvk/vk"
)

// hunts have the random problems that find each mutant, with flags and a seed that leave few kernels
// to compile. Suite is the path of the fixed suite that runs the mutant's modules; "": none.
var hunts = map[string]struct {
	problems, seed int
	flags          []string
	suite          string
}{
	"late-amax":                 {8, 1, []string{"--impl", "coopmat", "--module", "attention_fwd_f32x2_coopmat.f32"}, "coopmat"},
	"half-of-the-lanes":         {24, 1, []string{"--impl", "coopmat", "--module", "attention_fwd_f32x2_coopmat.f32"}, "coopmat"},
	"half-of-the-maxima":        {120, 1, []string{"--impl", "unfused", "--module", "attention_unfused_softmax"}, "unfused"},
	"half-of-the-columns":       {72, 1, []string{"--impl", "scalar", "--module", "attention_fwd_scalar_features.f32"}, "scalar"},
	"o-not-rescaled":            {72, 1, []string{"--impl", "scalar", "--module", "attention_fwd_scalar.f16"}, "scalar"},
	"no-delta":                  {72, 1, []string{"--impl", "scalar", "--module", "attention_bwd_dq_scalar.f16"}, "scalar"},
	"k-tile-read":               {8, 3, []string{"--impl", "coopmat", "--dtype", "float16"}, ""},
	"rows-past-k":               {24, 1, []string{"--impl", "coopmat", "--dtype", "float16"}, ""},
	"parts-early":               {8, 83, nil, ""},
	"row-past-m":                {8, 83, nil, ""},
	"few-sums-early":            {8, 4, []string{"--module", "gemm_gemv_coopmat.f16"}, ""},
	"few-past-m":                {8, 1, []string{"--module", "gemm_gemv_coopmat.f16"}, ""},
	"sums-early":                {30, 1, []string{"--module", "norm_fwd.f16"}, ""},
	"partial-left":              {40, 3, nil, ""},
	"bias-sums-early":           {16, 1, nil, ""},
	"vector-past-the-row":       {30, 1, nil, ""},
	"rest-subtracted":           {30, 1, nil, ""},
	"x-overwritten":             {60, 1, []string{"--impl", "scalar"}, ""},
	"sum-not-rescaled":          {12, 1, []string{"--impl", "scalar"}, ""},
	"loss-left":                 {30, 1, nil, ""},
	"amax-early":                {30, 1, nil, ""},
	"row-of-three-blocks":       {30, 1, nil, ""},
	"far-position":              {30, 1, nil, ""},
	"one-too-many":              {30, 5, nil, ""},
	"few-for-all":               {30, 1, nil, ""},
	"more-than-room":            {30, 1, nil, ""},
	"seen-rewarded":             {30, 3, nil, ""},
	"squares-of-weighted":       {30, 1, nil, ""},
	"gate-for-up":               {30, 1, nil, ""},
	"rotated-value":             {30, 1, nil, ""},
	"round-not-rescaled":        {60, 1, nil, ""},
	"keys-past-the-last":        {24, 1, []string{"--impl", "scalar", "--module", "attention_decode.f16"}, ""},
	"key-after-the-query":       {120, 1, []string{"--impl", "scalar", "--module", "attention_decode.f16"}, ""},
	"counter-left":              {24, 1, []string{"--impl", "scalar", "--module", "attention_decode.f16"}, ""},
	"quant-mean-of-hidden-keys": {72, 1, []string{"--impl", "scalar", "--dtype", "float16"}, ""},
	"quant-shift":               {72, 1, []string{"--impl", "scalar", "--dtype", "float16"}, ""},
	"quant-first-scale":         {8, 1, []string{"--impl", "coopmat", "--module", "attention_fwd_quant_coopmat_features.f16"}, ""},
	"new-keys-early":            {24, 1, []string{"--impl", "scalar", "--module", "attention_decode_append.f32"}, ""},
}

// suiteBudget is the time of the fixed suite for each mutant. The package documentation says what
// it finds in minutes.
const suiteBudget = "2s"

// TestMutants wants random problems to find every mutant that the device can show. In make
// test-all it also wants them to find nothing wrong with the unchanged kernels.
func TestMutants(t *testing.T) {
	d := vktest.Open(t, vktest.NoValidation)
	if d.Caps().Type != vk.CPU || !d.Caps().CoopMat {
		t.Skip("the mutants are for a software driver with matrices, which runs subgroups in the same order each time")
	}
	glslc := compiletest.Tool(t, "..", "glslc", false)
	program := filepath.Join(t.TempDir(), "flashvk")
	out, err := exec.Command("go", "build", "-buildvcs=false", "-ldflags=-w", "-o", program, "../bench/flashvk").CombinedOutput()
	require.NoError(t, err, "%s", out)
	right := map[string]bool{} // commands that passed with the unchanged kernels
	table := fmt.Sprintf("%-20s %-10s %-10s %s", "mutant", "kernel", "suite", "random")
	for _, m := range mutate.All() {
		row := func(suite, random string) {
			table += fmt.Sprintf("\n%-20s %-10s %-10s %s", m.Name, m.Kernel, suite, random)
		}
		if m.Hidden != "" {
			row("-", "hidden: "+m.Hidden)
			continue
		}
		t.Run(m.Name, func(t *testing.T) {
			hunt, ok := hunts[m.Name]
			require.True(t, ok, "no problems to find it with")
			dir := t.TempDir()
			require.NoError(t, m.Compile(glslc, filepath.Join("..", "shaders"), dir))
			failures := "10" // shows how well it is found
			if !vktest.Thorough(d) {
				failures = "1"
			}
			args := append([]string{"selftest", "--failures", failures, "--random", strconv.Itoa(hunt.problems), "--seed", strconv.Itoa(hunt.seed), "--kernel", m.Kernel, "--shrink", "0s"}, hunt.flags...)
			// In make test, TestRandom of package trial checks the unchanged kernels.
			if command := strings.Join(args, " "); vktest.Thorough(d) && !right[command] {
				code, text := run(t, program, args...)
				require.Zero(t, code, "without the mutant: %s", text)
				right[command] = true
			}
			code, text := run(t, program, append(args, "--modules", dir)...)
			require.Equal(t, 1, code, "%s", text)
			require.Contains(t, text, "WRONG")
			random := fmt.Sprintf("caught: %d of %d", strings.Count(text, "WRONG"), hunt.problems)
			switch {
			case hunt.suite == "":
				row("no cases", random)
				return
			case !vktest.Thorough(d):
				row("not run", random) // the suite decides nothing here
				return
			}
			suite := "missed"
			if _, text := run(t, program, "selftest", "--modules", dir, "--impl", hunt.suite, "--budget", suiteBudget); strings.Contains(text, "WRONG") {
				suite = "caught"
			}
			row(suite, random)
		})
	}
	t.Logf("the suite has %s:\n%s", suiteBudget, table)
}

// run runs a program with the Vulkan of this one, and returns its exit status and its output.
func run(t *testing.T, program string, args ...string) (code int, text string) {
	t.Helper()
	c := exec.Command(program, args...)
	if vkrun := os.Getenv("FLASHVK_VKRUN"); vkrun != "" {
		c = exec.Command(vkrun, append([]string{program}, args...)...)
	}
	var out bytes.Buffer
	c.Stdout, c.Stderr = &out, &out
	err := c.Run()
	if failed := (*exec.ExitError)(nil); err != nil && !errors.As(err, &failed) {
		t.Fatal(err)
	}
	return c.ProcessState.ExitCode(), out.String()
}
