// Package tools_test tests the shell scripts of this folder against stand-ins for
// apt-get, dpkg, packages and hardware: nothing is downloaded.
package tools_test

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
)

// run runs a script of this folder with only the given variables (and PATH, TMPDIR)
// in its environment, and returns its output and exit status.
func run(t *testing.T, env []string, name string, args ...string) (stdout, stderr string, status int) {
	t.Helper()
	path, err := filepath.Abs(name)
	if err != nil {
		t.Fatal(err)
	}
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
		if err := os.MkdirAll(filepath.Dir(path), 0o777); err != nil {
			t.Fatal(err)
		}
		mode := os.FileMode(0o666)
		if strings.HasPrefix(text, "#!") {
			mode = 0o777
		}
		if err := os.WriteFile(path, []byte(text), mode); err != nil {
			t.Fatal(err)
		}
	}
}

// uris returns the URIs lines of `toolchain --sources`.
func uris(out string) string {
	var list []string
	for line := range strings.Lines(out) {
		if uri, ok := strings.CutPrefix(strings.TrimSpace(line), "URIs: "); ok {
			list = append(list, uri)
		}
	}
	return strings.Join(list, " ")
}

func TestSources(t *testing.T) {
	for _, tt := range []struct {
		name  string
		files map[string]string
		want  string // URIs in order
	}{
		{"deb822", map[string]string{"sources.list.d/debian.sources": `
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
		{"one line", map[string]string{"sources.list": `
# deb http://commented.test/debian bookworm main
deb-src http://source.test/debian bookworm main
deb [ arch=amd64 signed-by=/k.gpg ] http://mirror.test/debian/ bookworm main contrib # why
deb http://security.test/debian-security bookworm-security main
deb cdrom:[Debian]/ bookworm main
`}, "http://mirror.test/debian/"},
		{"others have main too", map[string]string{"sources.list.d/node.list": `
deb https://node.test/node_20.x nodistro main
deb https://cloud.test/apt cloud-sdk-bookworm main
deb https://flat.test/ ./
deb http://mirror.test/debian trixie non-free
`}, ""},
		{"a Debian archive goes first", map[string]string{"sources.list.d/a.list": `
deb https://vendor.test/apt bookworm main
deb http://mirror.test/debian bookworm main
`}, "http://mirror.test/debian https://vendor.test/apt"},
		{"disabled", map[string]string{"sources.list.d/d.sources": `
Enabled: no
Types: deb
URIs: http://mirror.test/debian
Suites: bookworm
Components: main
`}, ""},
		{"folded fields, several URIs", map[string]string{"sources.list.d/d.sources": `
types: deb deb-src
uris: http://one.test/debian
 http://two.test/debian
suites:
 bookworm
components: contrib
 main`}, "http://one.test/debian http://two.test/debian"},
		{"twice", map[string]string{"sources.list": `
deb http://mirror.test/debian bookworm main
deb http://mirror.test/debian bookworm main
`}, "http://mirror.test/debian"},
		{"none", nil, ""},
	} {
		t.Run(tt.name, func(t *testing.T) {
			etc := t.TempDir()
			tree(t, etc, tt.files)
			out, stderr, status := run(t, []string{"FLASHVK_APT_ETC=" + etc}, "toolchain", "--sources")
			if got := uris(out); got != tt.want || status != 0 {
				t.Errorf("URIs are %q (status %d, %s), want %q", got, status, stderr, tt.want)
			}
		})
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
		if !strings.Contains(out, want) {
			t.Errorf("output is %q, want it to contain %q", out, want)
		}
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
	if err != nil && !os.IsNotExist(err) {
		t.Fatal(err)
	}
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
			if status != 0 {
				t.Errorf("status %d: %s", status, stderr)
			}
			roots[i] = strings.TrimSpace(out)
		}()
	}
	wg.Wait()
	for _, root := range roots {
		if root == "" || root != roots[0] {
			t.Fatalf("roots are %q, want one", roots)
		}
	}
	if n := downloads(t, dir); n != 1 {
		t.Errorf("%d downloads, want 1", n)
	}
	if _, err := os.Stat(roots[0] + ".part"); !os.IsNotExist(err) {
		t.Errorf("the temporary folder is still there: %v", err)
	}
	icd, err := os.ReadFile(filepath.Join(roots[0], "lvp_icd.json"))
	if err != nil || !strings.Contains(string(icd), `"library_path": "./usr/lib/`) {
		t.Errorf("lvp_icd.json is %s (%v)", icd, err)
	}
	out, _, _ := run(t, env, "toolchain", "--get", "FLASHVK_SPIRV_VAL")
	if strings.TrimSpace(out) != filepath.Join(roots[0], "bin/spirv-val") {
		t.Errorf("FLASHVK_SPIRV_VAL is %q", out)
	}
}

// TestToolchainResumes breaks off in the middle: the next try keeps the archives.
func TestToolchainResumes(t *testing.T) {
	env, dir := fakeMachine(t)
	tree(t, dir, map[string]string{"broken": ""})
	out, stderr, status := run(t, env, "toolchain")
	if status != 1 || out != "" || !strings.Contains(stderr, "E: broken half way") {
		t.Errorf("status %d, output %q, %q", status, out, stderr)
	}
	if err := os.Remove(filepath.Join(dir, "broken")); err != nil {
		t.Fatal(err)
	}
	if _, stderr, status := run(t, env, "toolchain"); status != 0 {
		t.Errorf("status %d: %s", status, stderr)
	}
	if n := downloads(t, dir); n != 1 {
		t.Errorf("%d downloads, want 1", n)
	}
}

// TestToolchainRefuses checks the one line that says why there is no toolchain.
func TestToolchainRefuses(t *testing.T) {
	for _, tt := range []struct {
		name, want string
		args       []string
		change     func(dir string, env []string) []string
	}{
		{"offline", "cannot fetch packages of the Debian suite forky (offline?): E: no route to archive", nil,
			func(dir string, env []string) []string { tree(t, dir, map[string]string{"offline": ""}); return env }},
		{"no archive", "apt is configured for no Debian archive", nil,
			func(dir string, env []string) []string {
				tree(t, dir, map[string]string{"etc/sources.list": ""})
				return env
			}},
		{"no apt-get", "no apt-get: this is not a Debian-like system", nil,
			func(dir string, env []string) []string {
				// Everything that PATH has, but apt-get.
				bin := filepath.Join(dir, "few")
				tree(t, bin, nil)
				for _, tool := range []string{"bash", "sha256sum", "mkdir", "flock", "dpkg", "awk", "sed"} {
					path, err := exec.LookPath(tool)
					if err != nil {
						t.Fatal(err)
					}
					if err := os.MkdirAll(bin, 0o777); err != nil {
						t.Fatal(err)
					}
					if err := os.Symlink(path, filepath.Join(bin, tool)); err != nil {
						t.Fatal(err)
					}
				}
				return append(env, "PATH="+bin)
			}},
		{"no build", "is not there: run tools/toolchain", []string{"--no-build"},
			func(dir string, env []string) []string { return env }},
	} {
		t.Run(tt.name, func(t *testing.T) {
			env, dir := fakeMachine(t)
			out, stderr, status := run(t, tt.change(dir, env), "toolchain", tt.args...)
			lines := strings.Split(strings.TrimSpace(stderr), "\n")
			last := lines[len(lines)-1]
			if status != 1 || out != "" || !strings.HasPrefix(last, "toolchain: ") || !strings.Contains(last, tt.want) {
				t.Errorf("status %d, output %q, last line %q, want 1 and %q", status, out, last, tt.want)
			}
		})
	}
}

// TestToolchainKeeps checks that variables which are set are answered with.
func TestToolchainKeeps(t *testing.T) {
	out, _, status := run(t, []string{"FLASHVK_GLSLC=/my/glslc"}, "toolchain", "--no-build", "--get", "FLASHVK_GLSLC")
	if out != "/my/glslc\n" || status != 0 {
		t.Errorf("output %q, status %d", out, status)
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
	// A dynamic program runs under the toolchain's linker, arguments as they are.
	out, stderr, status := run(t, env, "vkrun", "printf", "%s|", "a b", "", "*", "$HOME")
	if want := "--library-path lib\na b||*|$HOME|"; out != want || status != 0 {
		t.Errorf("output %q, status %d (%s), want %q", out, status, stderr, want)
	}
	// A script runs directly; it sees the driver, the layer and vkrun.
	script := filepath.Join(t.TempDir(), "script")
	tree(t, filepath.Dir(script), map[string]string{"script": "#!/bin/sh\necho $VK_DRIVER_FILES $VK_LAYER_PATH $FLASHVK_VKRUN\nexit 7\n"})
	out, _, status = run(t, env, "vkrun", script)
	vkrun, err := filepath.Abs("vkrun")
	if err != nil {
		t.Fatal(err)
	}
	if want := root + "/lvp_icd.json " + root + "/usr/share/vulkan/explicit_layer.d " + vkrun + "\n"; out != want || status != 7 {
		t.Errorf("output %q, status %d, want %q and 7", out, status, want)
	}
	// What go run builds is started by vkrun, which may lie in a folder with a space.
	text, err := os.ReadFile("vkrun")
	if err != nil {
		t.Fatal(err)
	}
	dir := filepath.Join(t.TempDir(), "a b")
	tree(t, dir, map[string]string{
		"vkrun":   string(text),
		"main.go": "package main\n\nimport \"C\"\nimport \"os\"\n\nfunc main() { os.Stdout.WriteString(os.Args[1]) }\n",
	})
	goEnv := append(env, "HOME="+os.Getenv("HOME"), "GOCACHE="+os.Getenv("GOCACHE"), "GOFLAGS=-trimpath")
	out, stderr, status = run(t, goEnv, filepath.Join(dir, "vkrun"), "go", "run", filepath.Join(dir, "main.go"), "c d")
	if want := "--library-path lib\nc d"; out != want || status != 0 {
		t.Errorf("go run: output %q, status %d (%s), want %q", out, status, stderr, want)
	}
	for _, args := range [][]string{nil, {"no-such-program"}, {"/no/such/program"}} {
		if out, stderr, status := run(t, env, "vkrun", args...); status != 127 || out != "" || strings.Count(stderr, "\n") != 1 {
			t.Errorf("%q: output %q, %q, status %d", args, out, stderr, status)
		}
	}
	if _, stderr, status := run(t, append(env, "FLASHVK_DRIVER=cuda"), "vkrun", "true"); status != 127 || !strings.Contains(stderr, "neither gpu nor lavapipe") {
		t.Errorf("FLASHVK_DRIVER=cuda: %q, status %d", stderr, status)
	}
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
		m := map[string]string{}
		for k, v := range files {
			if k != name {
				m[k] = v
			}
		}
		return m
	}
	for _, tt := range []struct {
		name  string
		files map[string]string
		env   []string
		want  string // SYS and ROOT stand for the two folders
	}{
		{"nothing", nil, nil, "lavapipe ROOT/lvp_icd.json"},
		{"nvidia", nvidia, nil, "gpu SYS/etc/vulkan/icd.d/nvidia_icd.json"},
		{"nvidia without its library", without(nvidia, "usr/lib/x86_64-linux-gnu/libGLX_nvidia.so.0"), nil, "lavapipe ROOT/lvp_icd.json"},
		{"nvidia without the card", without(nvidia, "dev/nvidiactl"), nil, "lavapipe ROOT/lvp_icd.json"},
		{"nvidia without a loader", without(nvidia, loader), nil, "lavapipe ROOT/lvp_icd.json"},
		{"the right one of Mesa's", mesa, nil, "gpu SYS/usr/share/vulkan/icd.d/radeon_icd.json"},
		{"Mesa without a node", without(mesa, "dev/dri/renderD128"), nil, "lavapipe ROOT/lvp_icd.json"},
		{"Mesa without the driver", without(mesa, "usr/share/vulkan/icd.d/radeon_icd.json"), nil, "lavapipe ROOT/lvp_icd.json"},
		{"lavapipe wanted", nvidia, []string{"FLASHVK_DRIVER=lavapipe"}, "lavapipe ROOT/lvp_icd.json"},
		{"gpu wanted", map[string]string{loader: ""}, []string{"FLASHVK_DRIVER=gpu"}, "gpu any"},
		{"driver given", nvidia, []string{"VK_DRIVER_FILES=/my_icd.json"}, "gpu /my_icd.json"},
		{"driver given the old way", nvidia, []string{"VK_ICD_FILENAMES=/my_icd.json"}, "gpu /my_icd.json"},
		{"driver given, no loader", nil, []string{"VK_DRIVER_FILES=/my_icd.json"}, "lavapipe /my_icd.json"},
		{"vkrun in vkrun", nvidia, []string{"VK_DRIVER_FILES=/c/flashvk/toolchain-1/lvp_icd.json"}, "lavapipe /c/flashvk/toolchain-1/lvp_icd.json"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			root, sys := fakeToolchain(t), t.TempDir()
			tree(t, sys, tt.files)
			env := append([]string{"FLASHVK_TOOLCHAIN=" + root, "FLASHVK_TEST_SYSROOT=" + sys}, tt.env...)
			out, stderr, status := run(t, env, "vkrun", "--which")
			want := strings.NewReplacer("ROOT", root, "SYS", sys).Replace(tt.want) + "\n"
			if out != want || status != 0 {
				t.Errorf("output %q, status %d (%s), want %q", out, status, stderr, want)
			}
		})
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
		if out != want+"\n" {
			t.Errorf("layer %s: VK_LAYER_PATH is %q, want %q", version, out, want)
		}
		out, _, _ = run(t, append(env, "VK_LAYER_PATH=/mine"), "vkrun", "sh", "-c", `echo "$VK_LAYER_PATH"`)
		if out != "/mine\n" {
			t.Errorf("layer %s: VK_LAYER_PATH=/mine became %q", version, out)
		}
	}
}
