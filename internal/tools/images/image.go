package main

import (
	"archive/tar"
	"bytes"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"time"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/layout"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
	"github.com/google/go-containerregistry/pkg/v1/types"
	"github.com/google/go-containerregistry/pkg/v1/validate"
)

// user is who runs the program: nobody that a node knows. The chart runs node proxies as
// root.
const user = "65532:65532"

// image is one program on all architectures.
type image struct {
	name, registry, version string
	created                 time.Time
	bin                     string
}

// labels are those of each image's configuration; its index has them as annotations.
func (x image) labels() map[string]string {
	return map[string]string{
		"org.opencontainers.image.title":    x.name,
		"org.opencontainers.image.version":  x.version,
		"org.opencontainers.image.created":  x.created.Format(time.RFC3339),
		"org.opencontainers.image.source":   "https://github.com/isthmus-mesh/isthmus",
		"org.opencontainers.image.licenses": "Apache-2.0",
	}
}

// build returns the index of the image's architectures.
func (x image) build() (v1.ImageIndex, error) {
	index := mutate.IndexMediaType(empty.Index, types.OCIImageIndex)
	for _, arch := range architectures {
		one, err := x.on(arch)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", arch, err)
		}
		index = mutate.AppendManifests(index, mutate.IndexAddendum{Add: one, Descriptor: v1.Descriptor{Platform: &v1.Platform{OS: "linux", Architecture: arch}}})
	}
	return mutate.Annotations(index, x.labels()).(v1.ImageIndex), nil
}

// on returns the image of one architecture: a layer with the program and nothing else.
func (x image) on(arch string) (v1.Image, error) {
	program, err := os.ReadFile(filepath.Join(x.bin, arch, x.name))
	if err != nil {
		return nil, err
	}
	files, err := x.files(program)
	if err != nil {
		return nil, err
	}
	layer, err := tarball.LayerFromOpener(func() (io.ReadCloser, error) { return io.NopCloser(bytes.NewReader(files)), nil }, tarball.WithMediaType(types.OCILayer))
	if err != nil {
		return nil, err
	}
	base := mutate.ConfigMediaType(mutate.MediaType(empty.Image, types.OCIManifestSchema1), types.OCIConfigJSON)
	one, err := mutate.Append(base, mutate.Addendum{Layer: layer, MediaType: types.OCILayer, History: v1.History{CreatedBy: "internal/tools/images", Created: v1.Time{Time: x.created}}})
	if err != nil {
		return nil, err
	}
	config, err := one.ConfigFile()
	if err != nil {
		return nil, err
	}
	config = config.DeepCopy()
	config.OS, config.Architecture = "linux", arch
	config.Created = v1.Time{Time: x.created}
	config.Config = v1.Config{Entrypoint: []string{"/" + x.name}, User: user, WorkingDir: "/", Labels: x.labels()}
	return mutate.ConfigFile(one, config)
}

// files is the tar of the file system.
func (x image) files(program []byte) ([]byte, error) {
	var b bytes.Buffer
	w := tar.NewWriter(&b)
	if err := w.WriteHeader(&tar.Header{Name: x.name, Typeflag: tar.TypeReg, Mode: 0o755, Size: int64(len(program)), ModTime: x.created, Format: tar.FormatUSTAR}); err != nil {
		return nil, err
	}
	if _, err := w.Write(program); err != nil {
		return nil, err
	}
	return b.Bytes(), w.Close()
}

// write writes index into an image layout at dir and into dir.tar, and reads it back.
func (x image) write(index v1.ImageIndex, dir string) (digest v1.Hash, err error) {
	if err := os.RemoveAll(dir); err != nil {
		return digest, err
	}
	path, err := layout.Write(dir, empty.Index)
	if err != nil {
		return digest, err
	}
	// By these containerd (ctr images import, kind load) and others name what they read.
	name := map[string]string{"io.containerd.image.name": x.registry + "/" + x.name + ":" + x.version, "org.opencontainers.image.ref.name": x.version}
	if err := path.AppendIndex(index, layout.WithAnnotations(name)); err != nil {
		return digest, err
	}
	if err := check(dir); err != nil {
		return digest, fmt.Errorf("read back: %w", err)
	}
	if err := pack(dir, dir+".tar", x.created); err != nil {
		return digest, err
	}
	return index.Digest()
}

// check reads the layout at dir: every blob is what its name says, and every manifest fits
// its configuration and layers.
func check(dir string) error {
	blobs := filepath.Join(dir, "blobs", "sha256")
	entries, err := os.ReadDir(blobs)
	if err != nil {
		return err
	}
	for _, e := range entries { // validate does not compare manifests and configurations with their digests
		f, err := os.Open(filepath.Join(blobs, e.Name()))
		if err != nil {
			return err
		}
		got, _, err := v1.SHA256(f)
		f.Close()
		if err != nil {
			return err
		}
		if got.Hex != e.Name() {
			return fmt.Errorf("blob %s has the digest %s", e.Name(), got)
		}
	}
	read, err := layout.ImageIndexFromPath(dir)
	if err != nil {
		return err
	}
	return validate.Index(read)
}

// pack writes the files of dir into a tar, in the order of their names.
func pack(dir, file string, at time.Time) (err error) {
	f, err := os.Create(file)
	if err != nil {
		return err
	}
	defer func() {
		if cerr := f.Close(); err == nil {
			err = cerr
		}
	}()
	w := tar.NewWriter(f)
	err = filepath.WalkDir(dir, func(path string, e os.DirEntry, err error) error {
		name, rerr := filepath.Rel(dir, path)
		if err != nil || rerr != nil || name == "." {
			return err
		}
		if e.IsDir() {
			return w.WriteHeader(&tar.Header{Name: name + "/", Typeflag: tar.TypeDir, Mode: 0o755, ModTime: at, Format: tar.FormatUSTAR})
		}
		text, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		if err := w.WriteHeader(&tar.Header{Name: name, Typeflag: tar.TypeReg, Mode: 0o644, Size: int64(len(text)), ModTime: at, Format: tar.FormatUSTAR}); err != nil {
			return err
		}
		_, err = w.Write(text)
		return err
	})
	if err != nil {
		return err
	}
	return w.Close()
}
