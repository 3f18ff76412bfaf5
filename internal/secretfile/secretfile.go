// Package secretfile reads private keys and tokens, and rejects files that other users of the
// machine can change or read. It is the one rule for every secret that a program reads.
package secretfile

import (
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
)

// MaxBytes bounds a secret. A private key has about 250 bytes, a token about 1 500.
const MaxBytes = 1 << 20

// Read returns the content of the secret at path, following symbolic links.
//
// The mode of the file must not allow:
//   - writing by the group or by others, ever;
//   - reading by others, except in a volume that the kubelet writes: a Secret has mode 0644 there
//     by default, and only the containers that mount it see it;
//   - reading by the group where the file belongs to the user of this process. A file of another
//     user, such as root, is read by its group on purpose (fsGroup in Kubernetes).
//
// The mode of its directory, and of that to which symbolic links lead, must not allow writing by
// others, who could replace the file. A directory with the sticky bit may, where each user replaces
// only own files, and so may one on a read-only mount: volumes of Kubernetes are both. The group is
// not judged: with a umask of 002 each user has a group of its own.
//
// An error names the file or directory, its mode and the remedy; errors of the file system can be matched
// with errors.Is. The file is checked after it is open, so it is the file that is read.
func Read(path string) ([]byte, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return nil, err
	}
	if err := check(path, info, inVolume(path)); err != nil {
		return nil, err
	}
	real, err := filepath.EvalSymlinks(path)
	if err != nil {
		return nil, err
	}
	for _, file := range []string{path, real} {
		if err := checkDir(filepath.Dir(file)); err != nil {
			return nil, err
		}
	}
	data, err := io.ReadAll(io.LimitReader(f, MaxBytes+1))
	if err != nil {
		return nil, err
	}
	if len(data) > MaxBytes {
		return nil, fmt.Errorf("%s is larger than %d bytes: it is no key and no token", path, MaxBytes)
	}
	return data, nil
}

// check applies the rule of Read to a file. volume is whether the kubelet wrote it.
func check(path string, info fs.FileInfo, volume bool) error {
	mode := info.Mode().Perm()
	st, ok := info.Sys().(*syscall.Stat_t)
	own := !ok || st.Uid == uint32(os.Geteuid())
	const remedy = "chmod 600 %s, and replace the secret if another user may have %s it; in Kubernetes mount its volume without subPath, or set defaultMode: 0400"
	switch {
	case mode&0o022 != 0:
		return fmt.Errorf("%s has mode %04o, other users may write it: "+remedy, path, mode, path, "changed")
	case mode&0o004 != 0 && !volume, mode&0o040 != 0 && own && !volume:
		return fmt.Errorf("%s has mode %04o, other users may read it: "+remedy, path, mode, path, "read")
	}
	return nil
}

// checkDir applies the rule of Read to a directory.
func checkDir(dir string) error {
	info, err := os.Stat(dir)
	if err != nil {
		return err
	}
	var mount syscall.Statfs_t
	const readOnly = 1 // ST_RDONLY of Linux, MNT_RDONLY of others
	if info.Mode().Perm()&0o002 == 0 || info.Mode()&os.ModeSticky != 0 || syscall.Statfs(dir, &mount) == nil && mount.Flags&readOnly != 0 {
		return nil
	}
	return fmt.Errorf("%s has mode %04o, other users may replace the files in it: chmod o-w %[1]s, or mount the volume of a pod with readOnly: true, and replace the secret if another user may have changed it", dir, info.Mode().Perm())
}

// payload is how the kubelet names the folder that has the files of a Secret, ConfigMap or
// projected volume. The folder ..data is a link to it, and each file is a link through ..data.
var payload = regexp.MustCompile(`^\.\.\d{4}_\d{2}_\d{2}_\d{2}_\d{2}_\d{2}\.\d+$`)

// inVolume reports whether path leads to a file in a volume that the kubelet writes.
func inVolume(path string) bool {
	real, err := filepath.EvalSymlinks(path)
	if err != nil {
		return false
	}
	for dir := range strings.SplitSeq(filepath.Dir(real), string(filepath.Separator)) {
		if payload.MatchString(dir) {
			return true
		}
	}
	return false
}
