//go:build linux

package capture

import (
	"os"
	"runtime"
	"unsafe"

	"golang.org/x/sys/unix"
)

// instruction is one of eBPF, as the kernel has it.
type instruction struct {
	code      uint8
	registers uint8 // the destination, and the source in the upper half
	offset    int16
	immediate int32
}

// selectOnly has the kernel give all connections of fd's group (SO_REUSEPORT) to fd, wherever it is in that, until it is
// closed; then it goes by its hash. Linux 4.19, CAP_BPF (or CAP_SYS_ADMIN) and CAP_NET_ADMIN.
func selectOnly(fd int) error {
	const (
		keyBytes, valueBytes = 4, 8
		selectReuseport      = 82 // bpf_sk_select_reuseport
		pass                 = 1  // SK_PASS
	)
	sockets, err := bpf(unix.BPF_MAP_CREATE, unsafe.Pointer(&struct{ kind, key, value, entries, flags uint32 }{unix.BPF_MAP_TYPE_REUSEPORT_SOCKARRAY, keyBytes, valueBytes, 1, 0}), 20)
	if err != nil {
		return err
	}
	defer unix.Close(sockets) // the program has it
	key, value := uint32(0), uint64(fd)
	element := struct {
		in         uint32
		_          uint32
		key, value unsafe.Pointer
		flags      uint64
	}{in: uint32(sockets), key: unsafe.Pointer(&key), value: unsafe.Pointer(&value)}
	if _, err := bpf(unix.BPF_MAP_UPDATE_ELEM, unsafe.Pointer(&element), unsafe.Sizeof(element)); err != nil {
		return err
	}
	code := []instruction{
		{code: unix.BPF_ST | unix.BPF_MEM | unix.BPF_W, registers: 10, offset: -keyBytes}, // key 0, on the stack
		{code: unix.BPF_LD | unix.BPF_IMM | unix.BPF_DW, registers: 2 | unix.BPF_PSEUDO_MAP_FD<<4, immediate: int32(sockets)},
		{},
		{code: unix.BPF_ALU64 | unix.BPF_MOV | unix.BPF_X, registers: 3 | 10<<4},
		{code: unix.BPF_ALU64 | unix.BPF_ADD | unix.BPF_K, registers: 3, immediate: -keyBytes},
		{code: unix.BPF_ALU64 | unix.BPF_MOV | unix.BPF_K, registers: 4},
		{code: unix.BPF_JMP | unix.BPF_CALL, immediate: selectReuseport},
		{code: unix.BPF_ALU64 | unix.BPF_MOV | unix.BPF_K, registers: 0, immediate: pass}, // without a socket: by the hash
		{code: unix.BPF_JMP | unix.BPF_EXIT},
	}
	license := [...]byte{0} // no helper asks for one
	program := struct {
		kind, length  uint32
		code, license unsafe.Pointer
		level, size   uint32
		log           uint64
		kernel, flags uint32
	}{kind: unix.BPF_PROG_TYPE_SK_REUSEPORT, length: uint32(len(code)), code: unsafe.Pointer(&code[0]), license: unsafe.Pointer(&license)}
	chooses, err := bpf(unix.BPF_PROG_LOAD, unsafe.Pointer(&program), unsafe.Sizeof(program))
	runtime.KeepAlive(code)
	if err != nil {
		return err
	}
	defer unix.Close(chooses) // the group has it
	return os.NewSyscallError("setsockopt", unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_ATTACH_REUSEPORT_EBPF, chooses))
}

// bpf is bpf(2).
func bpf(command int, attributes unsafe.Pointer, size uintptr) (int, error) {
	n, _, e := unix.Syscall(unix.SYS_BPF, uintptr(command), uintptr(attributes), size)
	if e != 0 {
		return -1, os.NewSyscallError("bpf", e)
	}
	return int(n), nil
}
