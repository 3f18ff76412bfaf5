//go:build !linux

package lab

import (
	"errors"
	"os"
)

var errLinuxOnly = errors.New("network namespaces are a part of Linux: run the drill there")

func leaveNetwork() (*os.File, error)             { return nil, errLinuxOnly }
func enterNetwork(*os.File) (func() error, error) { return nil, errLinuxOnly }
