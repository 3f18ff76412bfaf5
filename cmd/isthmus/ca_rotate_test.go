package main

import "testing"

func TestCARotateSaysWhatIsLeftToDo(t *testing.T) {
	ca, _ := madeCA(t)
	for _, step := range []struct {
		args []string
		code int
		want string
	}{
		{[]string{"--switch"}, exitStart, "no next root"},
		{[]string{"--switch", "--finish"}, exitUsage, "two steps"},
		{[]string{"--lifetime", "0s"}, exitUsage, "too short"},
		{nil, exitOK, "--switch"},
		{[]string{"--finish"}, exitStart, "--switch"},
		{[]string{"--switch"}, exitOK, "--finish"},
		{nil, exitStart, "--finish"},
		{[]string{"--finish"}, exitOK, "no other root is believed"},
	} {
		code, out, errs := isthmus(t, append([]string{"ca", "rotate", "--dir", ca}, step.args...)...)
		if code != step.code {
			t.Errorf("ca rotate %v: exit %d, want %d; %s", step.args, code, step.code, errs)
		}
		wantIn(t, out+errs, step.want)
	}
}
