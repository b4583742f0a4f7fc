// guided.cuh -- what ways through the trellis keep, of those that carry their errors.
//
// Of each step and state of a team's token the error and the step of the way that is in it, and for
// all tokens of a group y with the errors of the groups before it.
//% local n, states = codec.group_size, codec.path.states

enum { $(s "way_teams") = $(codec.way_teams) };

typedef union $(s "room_of_ways") {
    struct {
        float         e[$(codec.way_teams)][$(n)][$(states)];
        float         base[$(n)][$(codec.room)];
        unsigned char step[$(codec.way_teams)][$(n)][$(states)];
    } of;
    //% if codec.searches then
    $(codec.step_type) steps[$(32 // codec.team)][$(2 * n)];
    //% end
} $(s "room_of_ways");
