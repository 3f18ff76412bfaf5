package main

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-containerregistry/pkg/v1/layout"
)

// programs writes stand-ins for the binaries.
func programs(t *testing.T, names ...string) (bin string) {
	t.Helper()
	bin = t.TempDir()
	for _, arch := range architectures {
		if err := os.MkdirAll(filepath.Join(bin, arch), 0o755); err != nil {
			t.Fatal(err)
		}
		for _, n := range names {
			if err := os.WriteFile(filepath.Join(bin, arch, n), []byte(strings.Repeat(n+arch, 1000)), 0o755); err != nil {
				t.Fatal(err)
			}
		}
	}
	return bin
}

var at = time.Unix(1_700_000_000, 0).UTC()

func TestTheSameProgramsGiveTheSameBytes(t *testing.T) {
	bin, a, b := programs(t, "isthmus-gateway", "isthmus"), t.TempDir(), t.TempDir()
	for _, out := range []string{a, b} {
		if err := run(bin, out, "localhost", "v1", at); err != nil {
			t.Fatal(err)
		}
	}
	n := 0
	filepath.WalkDir(a, func(path string, e os.DirEntry, err error) error {
		if err != nil {
			t.Fatal(err)
		}
		if e.IsDir() {
			return nil
		}
		n++
		name, _ := filepath.Rel(a, path)
		x, _ := os.ReadFile(path)
		if y, err := os.ReadFile(filepath.Join(b, name)); err != nil || !bytes.Equal(x, y) {
			t.Errorf("%s is not the same the second time (%v)", name, err)
		}
		return nil
	})
	if n < 15 {
		t.Errorf("%d files; want two layouts, two tars and the digests", n)
	}
	other := t.TempDir()
	if err := run(bin, other, "localhost", "v2", at); err != nil {
		t.Fatal(err)
	}
	x, _ := os.ReadFile(filepath.Join(a, "digests"))
	if y, _ := os.ReadFile(filepath.Join(other, "digests")); bytes.Equal(x, y) {
		t.Error("another version has the same digests")
	}
}

func TestAnImageHoldsTheProgramForNobodyAndNothingElse(t *testing.T) {
	out := t.TempDir()
	if err := run(programs(t, "isthmus-gateway"), out, "localhost", "v1", at); err != nil {
		t.Fatal(err)
	}
	root, err := layout.ImageIndexFromPath(filepath.Join(out, "isthmus-gateway"))
	if err != nil {
		t.Fatal(err)
	}
	top, err := root.IndexManifest()
	if err != nil {
		t.Fatal(err)
	}
	if len(top.Manifests) != 1 || top.Manifests[0].Annotations["io.containerd.image.name"] != "localhost/isthmus-gateway:v1" {
		t.Fatalf("index.json names %+v", top.Manifests)
	}
	index, err := root.ImageIndex(top.Manifests[0].Digest)
	if err != nil {
		t.Fatal(err)
	}
	m, err := index.IndexManifest()
	if err != nil {
		t.Fatal(err)
	}
	if len(m.Manifests) != len(architectures) {
		t.Fatalf("%d architectures", len(m.Manifests))
	}
	for i, d := range m.Manifests {
		one, err := index.Image(d.Digest)
		if err != nil {
			t.Fatal(err)
		}
		c, err := one.ConfigFile()
		if err != nil {
			t.Fatal(err)
		}
		layers, err := one.Layers()
		if err != nil {
			t.Fatal(err)
		}
		if c.Architecture != architectures[i] || c.OS != "linux" || c.Config.User != user || len(layers) != 1 || len(c.Config.Entrypoint) != 1 || c.Config.Entrypoint[0] != "/isthmus-gateway" ||
			!c.Created.Equal(at) || c.Config.Labels["org.opencontainers.image.version"] != "v1" {
			t.Errorf("%s: %+v with %d layers", architectures[i], c, len(layers))
		}
	}
}

func TestABrokenLayoutIsFound(t *testing.T) {
	out := t.TempDir()
	if err := run(programs(t, "isthmus"), out, "localhost", "v1", at); err != nil {
		t.Fatal(err)
	}
	dir := filepath.Join(out, "isthmus")
	if err := check(dir); err != nil {
		t.Fatal(err)
	}
	blobs, err := filepath.Glob(filepath.Join(dir, "blobs", "sha256", "*"))
	if err != nil || len(blobs) < 5 {
		t.Fatalf("%d blobs, %v", len(blobs), err)
	}
	for _, b := range blobs {
		text, err := os.ReadFile(b)
		if err != nil {
			t.Fatal(err)
		}
		text[len(text)/2] ^= 1
		os.WriteFile(b, text, 0o644)
		if check(dir) == nil {
			t.Errorf("a bit of %s is another, and nobody says so", filepath.Base(b))
		}
		text[len(text)/2] ^= 1
		os.WriteFile(b, text, 0o644)
	}
}

func TestProgramsOfOneArchitectureAloneAreRefused(t *testing.T) {
	bin := programs(t, "isthmus")
	if err := os.WriteFile(filepath.Join(bin, "arm64", "more"), nil, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := run(bin, t.TempDir(), "localhost", "v1", at); err == nil || !strings.Contains(err.Error(), "arm64") {
		t.Errorf("got %v; want an error that names arm64", err)
	}
}
