// Package tools_test tests the shell scripts of this folder against stand-ins for
// apt-get, dpkg, packages and hardware: nothing is downloaded.
package tools_test

import (
	"errors"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// run runs a script of this folder with only the given variables (and PATH, TMPDIR)
// in its environment, and returns its output and exit status.
func run(t *testing.T, env []string, name string, args ...string) (stdout, stderr string, status int) {
	t.Helper()
	path, err := filepath.Abs(name)
	require.NoError(t, err)
	cmd := exec.Command(path, args...)
	cmd.Env = append([]string{"PATH=" + os.Getenv("PATH"), "TMPDIR=" + os.TempDir()}, env...)
	var out, errOut strings.Builder
	cmd.Stdout, cmd.Stderr = &out, &errOut
	var exit *exec.ExitError
	if err := cmd.Run(); err != nil && !errors.As(err, &exit) {
		t.Fatal(err)
	}
	return out.String(), errOut.String(), cmd.ProcessState.ExitCode()
}

// tree writes files below dir: executable where the text is a script.
func tree(t *testing.T, dir string, files map[string]string) {
	t.Helper()
	for name, text := range files {
		path := filepath.Join(dir, name)
		require.NoError(t, os.MkdirAll(filepath.Dir(path), 0o777))
		mode := os.FileMode(0o666)
		if strings.HasPrefix(text, "#!") {
			mode = 0o777
		}
		require.NoError(t, os.WriteFile(path, []byte(text), mode))
	}
}

func TestSources(t *testing.T) {
	for name, tt := range map[string]struct {
		files map[string]string
		want  string // URIs in order
	}{
		"deb822": {map[string]string{"sources.list.d/debian.sources": `
Types: deb
# a comment inside
URIs: http://mirror.test/debian
Suites: bookworm bookworm-updates
Components: main

Types: deb
URIs: http://mirror.test/debian-security
Suites: bookworm-security
Components: main
`}, "http://mirror.test/debian"},
		"one line": {map[string]string{"sources.list": `
# deb http://commented.test/debian bookworm main
deb-src http://source.test/debian bookworm main
deb [ arch=amd64 signed-by=/k.gpg ] http://mirror.test/debian/ bookworm main contrib # why
deb http://security.test/debian-security bookworm-security main
deb cdrom:[Debian]/ bookworm main
`}, "http://mirror.test/debian/"},
		"others have main too": {map[string]string{"sources.list.d/node.list": `
deb https://node.test/node_20.x nodistro main
deb https://cloud.test/apt cloud-sdk-bookworm main
deb https://flat.test/ ./
deb http://mirror.test/debian trixie non-free
`}, ""},
		"a Debian archive goes first, once": {map[string]string{"sources.list.d/a.list": `
deb https://vendor.test/apt bookworm main
deb http://mirror.test/debian bookworm main
deb http://mirror.test/debian bookworm main
`}, "http://mirror.test/debian https://vendor.test/apt"},
		"disabled": {map[string]string{"sources.list.d/d.sources": `
Enabled: no
Types: deb
URIs: http://mirror.test/debian
Suites: bookworm
Components: main
`}, ""},
		"folded fields, several URIs": {map[string]string{"sources.list.d/d.sources": `
types: deb deb-src
uris: http://one.test/debian
 http://two.test/debian
suites:
 bookworm
components: contrib
 main`}, "http://one.test/debian http://two.test/debian"},
		"none": {nil, ""},
	} {
		etc := t.TempDir()
		tree(t, etc, tt.files)
		out, stderr, status := run(t, []string{"FLASHVK_APT_ETC=" + etc}, "toolchain", "--sources")
		require.Zero(t, status, stderr)
		var uris []string
		for line := range strings.Lines(out) {
			if uri, ok := strings.CutPrefix(strings.TrimSpace(line), "URIs: "); ok {
				uris = append(uris, uri)
			}
		}
		require.Equal(t, tt.want, strings.Join(uris, " "), name)
	}
}

// TestSourcesOptions checks that what apt needs to trust an archive comes along.
func TestSourcesOptions(t *testing.T) {
	etc := t.TempDir()
	tree(t, etc, map[string]string{
		"sources.list": "deb [signed-by=/a.gpg,/b.gpg check-valid-until=no] http://a.test/debian bookworm main\n",
		"sources.list.d/b.sources": `Types: deb
URIs: http://b.test/debian
Suites: bookworm
Components: main
Signed-By:
 -----BEGIN PGP PUBLIC KEY BLOCK-----
 .
 mQINBF
 -----END PGP PUBLIC KEY BLOCK-----
`})
	out, _, _ := run(t, []string{"FLASHVK_APT_ETC=" + etc}, "toolchain", "--sources")
	for _, want := range []string{
		"URIs: http://a.test/debian\nSuites: forky\nComponents: main\n",
		"Signed-By: /a.gpg /b.gpg\nCheck-Valid-Until: no\n\n",
		"Signed-By: \n -----BEGIN PGP PUBLIC KEY BLOCK-----\n .\n mQINBF\n -----END PGP PUBLIC KEY BLOCK-----\n\n",
	} {
		require.Contains(t, out, want)
	}
}

// fakeMachine returns the environment of a machine whose apt-get and dpkg make a
// toolchain of scripts, and its folder. Each download is a line in downloads.
func fakeMachine(t *testing.T) (env []string, dir string) {
	t.Helper()
	dir = t.TempDir()
	tree(t, dir, map[string]string{
		"etc/sources.list": "deb http://mirror.test/debian bookworm main\n",
		// apt-get -c CONF -qq update | install: keeps what it has, as apt does.
		"bin/apt-get": `#!/bin/sh
part=${2%/apt.conf}
case "$*" in
*update*) [ ! -e "` + dir + `/offline" ] || { echo "E: no route to archive"; exit 100; } ;;
*install*)
	sleep 0.3
	[ -e "$part/archives/one.deb" ] || { echo one >>"` + dir + `/downloads"; touch "$part/archives/one.deb"; }
	[ ! -e "` + dir + `/broken" ] || { echo "E: broken half way"; exit 100; }
	touch "$part/archives/two.deb"
	;;
esac
`,
		"bin/dpkg": `#!/bin/sh
for lib in "$3/usr/lib/x86_64-linux-gnu" "$3/usr/lib/aarch64-linux-gnu"; do
	mkdir -p "$lib" "$3/usr/bin" "$3/usr/share/vulkan/icd.d"
	printf '#!/bin/sh\nshift 2\nexec "$@"\n' >"$lib/ld-linux-x86-64.so.2"
	cp "$lib/ld-linux-x86-64.so.2" "$lib/ld-linux-aarch64.so.1"
	chmod +x "$lib"/*
done
for tool in glslc spirv-val spirv-dis spirv-as spirv-opt vulkaninfo; do
	printf '#!/bin/sh\necho llvmpipe\n' >"$3/usr/bin/$tool"
	chmod +x "$3/usr/bin/$tool"
done
echo '{"ICD": {"library_path": "libvulkan_lvp.so"}}' >"$3/usr/share/vulkan/icd.d/lvp_icd.json"
`})
	return []string{"PATH=" + filepath.Join(dir, "bin") + ":" + os.Getenv("PATH"),
		"XDG_CACHE_HOME=" + filepath.Join(dir, "cache"), "FLASHVK_APT_ETC=" + filepath.Join(dir, "etc")}, dir
}

func downloads(t *testing.T, dir string) int {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(dir, "downloads"))
	require.True(t, err == nil || os.IsNotExist(err), err)
	return strings.Count(string(text), "\n")
}

func TestToolchainAtOnce(t *testing.T) {
	env, dir := fakeMachine(t)
	var wg sync.WaitGroup
	roots := make([]string, 4)
	for i := range roots {
		wg.Add(1)
		go func() {
			defer wg.Done()
			out, stderr, status := run(t, env, "toolchain")
			assert.Zero(t, status, stderr)
			roots[i] = strings.TrimSpace(out)
		}()
	}
	wg.Wait()
	root := roots[0]
	require.Equal(t, []string{root, root, root, root}, roots)
	require.Equal(t, 1, downloads(t, dir))
	require.NoDirExists(t, root+".part")
	icd, err := os.ReadFile(filepath.Join(root, "lvp_icd.json"))
	require.NoError(t, err)
	require.Contains(t, string(icd), `"library_path": "./usr/lib/`)
	out, _, _ := run(t, env, "toolchain", "--get", "FLASHVK_SPIRV_VAL")
	require.Equal(t, filepath.Join(root, "bin/spirv-val"), strings.TrimSpace(out))
	// A variable that is set is the answer.
	out, _, status := run(t, []string{"FLASHVK_GLSLC=/my/glslc"}, "toolchain", "--no-build", "--get", "FLASHVK_GLSLC")
	require.Zero(t, status)
	require.Equal(t, "/my/glslc\n", out)
}

// TestToolchainResumes breaks off in the middle: the next try keeps the archives.
func TestToolchainResumes(t *testing.T) {
	env, dir := fakeMachine(t)
	tree(t, dir, map[string]string{"broken": ""})
	_, stderr, status := run(t, env, "toolchain")
	require.Equal(t, 1, status)
	require.Contains(t, stderr, "E: broken half way")
	require.NoError(t, os.Remove(filepath.Join(dir, "broken")))
	_, stderr, status = run(t, env, "toolchain")
	require.Zero(t, status, stderr)
	require.Equal(t, 1, downloads(t, dir))
}

// TestToolchainRefuses checks the one line that says why there is no toolchain.
func TestToolchainRefuses(t *testing.T) {
	for _, tt := range []struct {
		want   string
		args   []string
		change func(dir string, env []string) []string
	}{
		{"cannot fetch packages of the Debian suite forky (offline?): E: no route to archive", nil,
			func(dir string, env []string) []string { tree(t, dir, map[string]string{"offline": ""}); return env }},
		{"apt is configured for no Debian archive", nil,
			func(dir string, env []string) []string {
				tree(t, dir, map[string]string{"etc/sources.list": ""})
				return env
			}},
		{"no apt-get: this is not a Debian-like system", nil,
			func(dir string, env []string) []string {
				// Everything that PATH has, but apt-get.
				bin := filepath.Join(dir, "few")
				require.NoError(t, os.MkdirAll(bin, 0o777))
				for _, tool := range []string{"bash", "sha256sum", "mkdir", "flock", "dpkg", "awk", "sed"} {
					path, err := exec.LookPath(tool)
					require.NoError(t, err)
					require.NoError(t, os.Symlink(path, filepath.Join(bin, tool)))
				}
				return append(env, "PATH="+bin)
			}},
		{"is not there: run tools/toolchain", []string{"--no-build"}, func(dir string, env []string) []string { return env }},
	} {
		env, dir := fakeMachine(t)
		out, stderr, status := run(t, tt.change(dir, env), "toolchain", tt.args...)
		require.Equal(t, 1, status)
		require.Empty(t, out)
		lines := strings.Split(strings.TrimSpace(stderr), "\n")
		require.Regexp(t, "^toolchain: .*"+regexp.QuoteMeta(tt.want), lines[len(lines)-1])
	}
}

// fakeToolchain returns a toolchain folder whose dynamic linker only runs programs.
func fakeToolchain(t *testing.T) string {
	t.Helper()
	root := t.TempDir()
	tree(t, root, map[string]string{
		"complete":     "",
		"paths":        "lib=$root/lib\nld=$root/ld\n",
		"ld":           "#!/bin/sh\necho \"$1 ${2##*/}\"\nshift 2\nexec \"$@\"\n",
		"lvp_icd.json": "{}",
	})
	return root
}

func TestVkrun(t *testing.T) {
	root, sys := fakeToolchain(t), t.TempDir()
	env := []string{"FLASHVK_TOOLCHAIN=" + root, "FLASHVK_TEST_SYSROOT=" + sys}
	want := func(out, stderr string, status int) func(wantOut string, wantStatus int) {
		return func(wantOut string, wantStatus int) {
			t.Helper()
			require.Equal(t, wantOut, out, stderr)
			require.Equal(t, wantStatus, status, stderr)
		}
	}
	// A dynamic program runs under the toolchain's linker, arguments as they are.
	want(run(t, env, "vkrun", "printf", "%s|", "a b", "", "*", "$HOME"))("--library-path lib\na b||*|$HOME|", 0)
	// A script runs directly; it sees the driver, the layer and vkrun.
	script := filepath.Join(t.TempDir(), "script")
	tree(t, filepath.Dir(script), map[string]string{"script": "#!/bin/sh\necho $VK_DRIVER_FILES $VK_LAYER_PATH $FLASHVK_VKRUN\nexit 7\n"})
	vkrun, err := filepath.Abs("vkrun")
	require.NoError(t, err)
	want(run(t, env, "vkrun", script))(root+"/lvp_icd.json "+root+"/usr/share/vulkan/explicit_layer.d "+vkrun+"\n", 7)
	// What go run builds is started by vkrun, which may lie in a folder with a space.
	text, err := os.ReadFile("vkrun")
	require.NoError(t, err)
	dir := filepath.Join(t.TempDir(), "a b")
	tree(t, dir, map[string]string{
		"vkrun":   string(text),
		"main.go": "package main\n\nimport \"C\"\nimport \"os\"\n\nfunc main() { os.Stdout.WriteString(os.Args[1]) }\n",
	})
	goEnv := append(env, "HOME="+os.Getenv("HOME"), "GOCACHE="+os.Getenv("GOCACHE"), "GOFLAGS=-trimpath")
	want(run(t, goEnv, filepath.Join(dir, "vkrun"), "go", "run", filepath.Join(dir, "main.go"), "c d"))("--library-path lib\nc d", 0)
	for _, args := range [][]string{nil, {"no-such-program"}, {"/no/such/program"}} {
		out, stderr, status := run(t, env, "vkrun", args...)
		want(out, stderr, status)("", 127)
		require.Equal(t, 1, strings.Count(stderr, "\n"), stderr)
	}
	_, stderr, status := run(t, append(env, "FLASHVK_DRIVER=cuda"), "vkrun", "true")
	require.Equal(t, 127, status)
	require.Contains(t, stderr, "neither gpu nor lavapipe")
}

// TestVkrunWhich shows vkrun machines of all kinds.
func TestVkrunWhich(t *testing.T) {
	const loader = "usr/lib/x86_64-linux-gnu/libvulkan.so.1"
	nvidia := map[string]string{loader: "", "dev/nvidiactl": "", "usr/lib/x86_64-linux-gnu/libGLX_nvidia.so.0": "",
		"etc/vulkan/icd.d/nvidia_icd.json": `{ "ICD": { "library_path": "libGLX_nvidia.so.0", "api_version": "1.4.312" } }`}
	mesa := map[string]string{loader: "", "dev/dri/renderD128": "", "sys/class/drm/renderD128/device/vendor": "0x1002\n",
		"usr/lib/x86_64-linux-gnu/libvulkan_radeon.so": "", "usr/lib/x86_64-linux-gnu/libvulkan_intel.so": "", "usr/lib/x86_64-linux-gnu/libvulkan_lvp.so": "",
		"usr/share/vulkan/icd.d/intel_icd.json":  "{\n \"ICD\": {\n  \"library_path\": \"libvulkan_intel.so\"\n }\n}\n",
		"usr/share/vulkan/icd.d/lvp_icd.json":    "{\n \"ICD\": {\n  \"library_path\": \"libvulkan_lvp.so\"\n }\n}\n",
		"usr/share/vulkan/icd.d/radeon_icd.json": "{\n \"ICD\": {\n  \"library_path\": \"/usr/lib/x86_64-linux-gnu/libvulkan_radeon.so\"\n }\n}\n"}
	without := func(files map[string]string, name string) map[string]string {
		m := maps.Clone(files)
		delete(m, name)
		return m
	}
	const lavapipe, given = "lavapipe ROOT/lvp_icd.json", "VK_DRIVER_FILES=/my_icd.json"
	for name, tt := range map[string]struct {
		files     map[string]string
		env, want string // SYS and ROOT stand for the two folders
	}{
		"nothing":                     {nil, "", lavapipe},
		"nvidia":                      {nvidia, "", "gpu SYS/etc/vulkan/icd.d/nvidia_icd.json"},
		"nvidia without its library":  {without(nvidia, "usr/lib/x86_64-linux-gnu/libGLX_nvidia.so.0"), "", lavapipe},
		"nvidia without the card":     {without(nvidia, "dev/nvidiactl"), "", lavapipe},
		"nvidia without a loader":     {without(nvidia, loader), "", lavapipe},
		"the right one of Mesa's":     {mesa, "", "gpu SYS/usr/share/vulkan/icd.d/radeon_icd.json"},
		"Mesa without a node":         {without(mesa, "dev/dri/renderD128"), "", lavapipe},
		"Mesa without the driver":     {without(mesa, "usr/share/vulkan/icd.d/radeon_icd.json"), "", lavapipe},
		"lavapipe wanted":             {nvidia, "FLASHVK_DRIVER=lavapipe", lavapipe},
		"gpu wanted":                  {map[string]string{loader: ""}, "FLASHVK_DRIVER=gpu", "gpu any"},
		"driver given":                {nvidia, given, "gpu /my_icd.json"},
		"driver given the old way":    {nvidia, "VK_ICD_FILENAMES=/my_icd.json", "gpu /my_icd.json"},
		"driver given without loader": {nil, given, "lavapipe /my_icd.json"},
		"vkrun in vkrun":              {nvidia, "VK_DRIVER_FILES=/c/flashvk/toolchain-1/lvp_icd.json", "lavapipe /c/flashvk/toolchain-1/lvp_icd.json"},
	} {
		root, sys := fakeToolchain(t), t.TempDir()
		tree(t, sys, tt.files)
		env := []string{"FLASHVK_TOOLCHAIN=" + root, "FLASHVK_TEST_SYSROOT=" + sys}
		if tt.env != "" {
			env = append(env, tt.env)
		}
		out, stderr, status := run(t, env, "vkrun", "--which")
		require.Zero(t, status, stderr)
		require.Equal(t, strings.NewReplacer("ROOT", root, "SYS", sys).Replace(tt.want)+"\n", out, name)
	}
}

// TestVkrunLayer checks that only a validation layer that knows what we use is
// offered to programs on a GPU.
func TestVkrunLayer(t *testing.T) {
	for version, want := range map[string]string{
		"1.3.239": "/nonexistent", "1.4.99": "/nonexistent", "1.4.309": "/nonexistent", "1.4.310": "/nonexistent",
		"1.4.311": "", "1.4.363": "", "1.5.1": "",
	} {
		sys := t.TempDir()
		tree(t, sys, map[string]string{
			"usr/share/vulkan/explicit_layer.d/VkLayer_khronos_validation.json": "{\n\"layer\": {\n\"api_version\": \"" + version + "\",\n}\n}\n"})
		env := []string{"FLASHVK_DRIVER=gpu", "FLASHVK_TEST_SYSROOT=" + sys}
		out, _, _ := run(t, env, "vkrun", "sh", "-c", `echo "$VK_LAYER_PATH"`)
		require.Equal(t, want+"\n", out, version)
		out, _, _ = run(t, append(env, "VK_LAYER_PATH=/mine"), "vkrun", "sh", "-c", `echo "$VK_LAYER_PATH"`)
		require.Equal(t, "/mine\n", out, version)
	}
}
