package kubernetes

import (
	"archive/tar"
	"bytes"
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"
)

// image writes an archive of an image for this machine, whose file system is files (here by
// the path there), and returns its path.
func image(t *testing.T, name string, entrypoint []string, files, links map[string]string) string {
	t.Helper()
	var layer bytes.Buffer
	w := tar.NewWriter(&layer)
	add := func(h tar.Header, data []byte) {
		h.Size = int64(len(data))
		if err := w.WriteHeader(&h); err != nil {
			t.Fatal(err)
		}
		w.Write(data)
	}
	add(tar.Header{Name: "tmp/", Typeflag: tar.TypeDir, Mode: 0o1777}, nil)
	for path, from := range files {
		data, err := os.ReadFile(from)
		if err != nil {
			t.Fatal(err)
		}
		add(tar.Header{Name: strings.TrimPrefix(path, "/"), Mode: 0o755}, data)
	}
	for path, to := range links {
		add(tar.Header{Name: strings.TrimPrefix(path, "/"), Typeflag: tar.TypeSymlink, Linkname: to, Mode: 0o777}, nil)
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	config, _ := json.Marshal(map[string]any{"architecture": runtime.GOARCH, "os": "linux", "config": map[string]any{"Entrypoint": entrypoint, "Env": []string{"PATH=/bin"}},
		"rootfs": map[string]any{"type": "layers", "diff_ids": []string{fmt.Sprintf("sha256:%x", sha256.Sum256(layer.Bytes()))}}})
	manifest, _ := json.Marshal([]map[string]any{{"Config": "config.json", "RepoTags": []string{name}, "Layers": []string{"layer.tar"}}})
	var archive bytes.Buffer
	w = tar.NewWriter(&archive)
	add(tar.Header{Name: "config.json", Mode: 0o644}, config)
	add(tar.Header{Name: "layer.tar", Mode: 0o644}, layer.Bytes())
	add(tar.Header{Name: "manifest.json", Mode: 0o644}, manifest)
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(t.TempDir(), "image.tar")
	if err := os.WriteFile(file, archive.Bytes(), 0o644); err != nil {
		t.Fatal(err)
	}
	return file
}

// busybox is an image of Debian's busybox and other programs of this machine, with the
// libraries that they load.
func busybox(t *testing.T, name string, programs ...string) string {
	t.Helper()
	box, err := exec.LookPath("busybox")
	if err != nil {
		t.Fatal(err)
	}
	files, links := map[string]string{"/bin/busybox": box}, map[string]string{}
	for _, applet := range []string{"sh", "cat", "echo", "httpd", "kill", "ls", "mkdir", "sleep", "stat", "id"} {
		links["/bin/"+applet] = "busybox"
	}
	for _, p := range programs {
		path, err := exec.LookPath(p)
		if err != nil {
			t.Fatal(err)
		}
		files["/bin/"+p] = path
		out, err := exec.Command("ldd", path).Output()
		if err != nil {
			t.Fatal(err)
		}
		for line := range strings.Lines(string(out)) { // libz.so.1 => /lib/x86_64-linux-gnu/libz.so.1 (0x…)
			f := strings.Fields(line)
			if i := slices.IndexFunc(f, func(s string) bool { return strings.HasPrefix(s, "/") }); i >= 0 {
				files[f[i]] = f[i]
			}
		}
	}
	return image(t, name, nil, files, links)
}
