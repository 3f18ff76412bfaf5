# The endpoint's own side found it well: readmitted without a probe of ours. The
# probe that was under way failed before that was known, so it says nothing.
0s begin a                           | healthy health=1.000 failures=0 ejections=0
0s end a failure                     | healthy health=0.700 failures=1 ejections=0
0s begin b                           | healthy health=0.700 failures=1 ejections=0
0s end b failure                     | ejected health=0.490 failures=2 ejections=1 until=1m0s unusable <ejected>
60s begin probe                      | probing health=0.490 failures=2 ejections=1 until=1m0s unusable
61s readmit                          | healthy health=0.490 failures=0 ejections=1 <readmitted>
62s end probe failure                | healthy health=0.490 failures=0 ejections=1
